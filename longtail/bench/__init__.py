"""Measurements of this installation: one module a bench, each with records()."""
