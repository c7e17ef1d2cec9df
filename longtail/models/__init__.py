"""Hugging Face causal LMs behind one packed forward pass, shared by engines and trainers."""
