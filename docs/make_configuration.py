"""Writes docs/configuration.md from longtail/config.py: `python docs/make_configuration.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from longtail.config import Config

PAGE = Path(__file__).parent / "configuration.md"
HEAD = """# Configuration

A TOML file has these keys, as tables (`[trainer]`, `lr = 1e-4`); the command line sets them with `-o trainer.lr=1e-4`.
An unknown key is refused, with the nearest known one. This page is made from `longtail/config.py`.

| key | default | is |
|---|---|---|
"""


def rows(section: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        candidates = (field.annotation, *getattr(field.annotation, "__args__", ()))
        inner = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        if inner:
            yield from rows(inner[0], f"{prefix}{name}.")
            continue
        default = "required" if field.is_required() else repr(field.get_default(call_default_factory=True))
        yield f"| `{prefix}{name}` | `{default}` | {field.description or ''} |"


def page() -> str:
    return HEAD + "\n".join(rows()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
