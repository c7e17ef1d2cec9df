"""Families."""

FAMILIES = ()
