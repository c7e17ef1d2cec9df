"""Advantages, losses and the presets that join them."""
