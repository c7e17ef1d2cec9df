"""What a tool says, made fit for a prompt and a journal. Not the place where control tokens are handled: the renderer
encodes everything here as plain text."""

from __future__ import annotations

KEPT_CHARS = 1 << 16  # of one tool result, for the record


def scrub(text: str) -> str:
    """Text that survives UTF-8, JSON and C strings: lone surrogates replaced, NUL shown as \\0."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\\0")


def decode(data: bytes) -> str:
    """Output of a program as text: invalid UTF-8 replaced, NUL shown."""
    return scrub(data.decode("utf-8", "replace"))


def clip(text: str, limit: int) -> str:
    """At most about `limit` characters: head and tail, with a notice of what was cut between them."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    tail = limit - head
    return f"{text[:head]}\n[{len(text) - limit} characters cut]\n{text[len(text) - tail :]}"
