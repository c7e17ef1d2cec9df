"""Engines: what samples tokens. `local` runs in this process with torch."""
