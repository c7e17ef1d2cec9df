"""Other names for the variables of the families' functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random

SYNONYMS: dict[str, tuple[str, ...]] = {
    key: tuple(rest.split())
    for key, rest in (
        ("items", "values rows entries"),
        ("values", "nums data items"),
        ("prices", "costs values"),
        ("total", "acc sum_ full"),
        ("amount", "value money cost"),
        ("price", "cost value"),
        ("count", "n num size"),
        ("people", "n count guests"),
        ("limit", "cap bound top"),
        ("rate", "percent pct"),
        ("tax", "extra part"),
        ("off", "cut less"),
        ("best", "top found"),
        ("out", "found kept res"),
        ("result", "res answer"),
    )
}

_TOKEN = re.compile(r"""'[^'\n]*'|"[^"\n]*"|(?<![\w.])[A-Za-z_]\w*""")


def rename(source: str, mapping: Mapping[str, str]) -> str:
    """Replace identifiers; strings and attributes stay."""
    return _TOKEN.sub(lambda match: mapping.get(match[0], match[0]), source)


def draw_names(source: str, reserved: frozenset[str], rng: Random) -> dict[str, str]:
    """New names for some variables of a function: no two alike, none in `reserved`."""
    present = list(dict.fromkeys(_TOKEN.findall(source)))
    taken = {*present, *reserved}
    mapping: dict[str, str] = {}
    for name in present:
        if name in SYNONYMS and name not in reserved and rng.random() < 0.6:
            free = [other for other in SYNONYMS[name] if other not in taken]
            if free:
                mapping[name] = rng.choice(free)
                taken.add(mapping[name])
    return mapping
