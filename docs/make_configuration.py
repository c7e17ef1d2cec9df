"""Writes docs/configuration.md from longtail/config.py: `python docs/make_configuration.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from longtail.config import known_fields

PAGE = Path(__file__).parent / "configuration.md"
HEAD = """# Configuration

A TOML file has these keys, as tables (`[trainer]`, `lr = 1e-4`); the command line sets them with `-o trainer.lr=1e-4`.
An unknown key is refused, with the nearest known one. This page is made from `longtail/config.py`.

| key | default | is |
|---|---|---|
"""


def rows() -> Iterator[str]:
    for key, field, is_section in known_fields():
        if not is_section:
            default = "required" if field.is_required() else repr(field.get_default(call_default_factory=True))
            yield f"| `{key}` | `{default}` | {field.description or ''} |"


def page() -> str:
    return HEAD + "\n".join(rows()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
