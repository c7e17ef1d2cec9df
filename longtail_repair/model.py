"""The shipped policy: a small Llama-shaped model, warm-started on expert episodes (recipes/repair_sft.toml)."""

from pathlib import Path


def path() -> Path:
    """The checkpoint's directory."""
    return Path(__file__).parent / "checkpoint"
