"""What a pristine test file expects, and whether values that came out of a sandbox meet it. Pure.

The answers are untrusted bytes: anything that is not the expected value is a failed test.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from longtail_repair import runner

Answer = tuple[bool, str]  # (True, repr of the value) or (False, name of the error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """The asserts of one test function."""

    setup: str  # source of the test file before its first test: the imports
    asserts: tuple[tuple[str, str, str], ...]  # call, "Eq" or "Is", literal

    def hold(self, answers: Sequence[Answer]) -> bool:
        return all(_meets(answer, *expected[1:]) for answer, expected in zip(answers, self.asserts, strict=True))


def checks_in(files: Mapping[str, str]) -> dict[str, Checks]:
    """ "path::test" -> its checks, of all test files in a workspace."""
    return {
        f"{path}::{name}": Checks(setup=files[path].partition("\n\ndef ")[0], asserts=tuple(asserts))
        for path in sorted(files)
        if path.startswith("tests/test_")
        for name, asserts in runner.parsed(files[path], path)[1]
    }


def request(checks: Mapping[str, Checks]) -> bytes:
    """What `run_tests.py --values` reads: the calls without what is expected of them."""
    parts = [{"setup": c.setup, "calls": [call for call, _, _ in c.asserts]} for c in checks.values()]
    return json.dumps(parts).encode()


def grade(checks: Mapping[str, Checks], output: bytes) -> dict[str, bool]:
    """ "path::test" -> passed, from what `run_tests.py --values` printed."""
    answers = _answers(output)
    if len(answers) != len(checks):
        return dict.fromkeys(checks, False)
    return {
        name: len(part) == len(c.asserts) and c.hold(part)
        for (name, c), part in zip(checks.items(), answers, strict=True)
    }


def _answers(output: bytes) -> list[list[Answer]]:
    """The printed answers, or nothing where they are malformed."""
    try:
        parts = json.loads(output)
        return [[(value[0] is True, str(value[1])) for value in part] for part in cast("list[list[Any]]", parts)]
    except (ValueError, TypeError, LookupError, RecursionError):
        return []


def _meets(answer: Answer, operator: str, wanted: str) -> bool:
    returned, text = answer
    if not returned:
        return False
    if text == wanted:
        return True
    try:
        value, expected = _literal(text), _literal(wanted)
        return bool(value == expected) and (operator == "Eq" or type(value) is type(expected))
    except Exception:  # the text may be anything: "{[]: 1}" is a TypeError
        return False


@lru_cache(maxsize=4096)
def _literal(text: str) -> Any:
    return ast.literal_eval(text)
