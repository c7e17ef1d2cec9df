"""Brings the trainer's weights to the engines."""
