"""How a family of packages is written down, and its parser.

    name: cart
    about: Prices of a shopping cart.
    packages: shop store
    modules: cart price
    constants: LIMIT 20 50 100; RATE 5 10

    ## fee cost charge | near("LIMIT")
    def fee(amount):
        ...

A `##` line names a function, its other names, and how its test arguments are drawn (draws.py). Under it stand one or
more variants of the function. Functions may call each other by their first names; upper-case names are constants of the
package; every variable may be renamed (names.py), so no f-strings.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longtail_repair import draws
from longtail_repair.draws import Draw

_DRAWS: dict[str, Any] = {name: value for name, value in vars(draws).items() if callable(value)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    name: str
    synonyms: tuple[str, ...]  # other names of the function
    arguments: tuple[Draw, ...]
    variants: tuple[str, ...]  # sources, all of the same meaning
    uses: frozenset[str]  # functions of the family that some variant calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    name: str
    about: str
    packages: tuple[str, ...]
    modules: tuple[str, ...]
    constants: Mapping[str, tuple[Any, ...]]  # name -> values to draw from
    templates: Mapping[str, Template]


def parse_family(text: str) -> Family:
    head, *parts = re.split(r"^## ", text.strip(), flags=re.MULTILINE)
    fields = dict(line.split(": ", 1) for line in head.strip().splitlines())
    names = [part.split(None, 1)[0] for part in parts]
    templates = [_template(part, frozenset(names)) for part in parts]
    return Family(
        name=fields["name"],
        about=fields["about"],
        packages=tuple(fields["packages"].split()),
        modules=tuple(fields["modules"].split()),
        constants=_constants(fields.get("constants", "")),
        templates={template.name: template for template in templates},
    )


def _constants(text: str) -> dict[str, tuple[Any, ...]]:
    entries = [entry.split() for entry in text.split(";") if entry.strip()]
    return {name: tuple(ast.literal_eval(value) for value in values) for name, *values in entries}


def _template(text: str, functions: frozenset[str]) -> Template:
    header, source = text.split("\n", 1)
    names, arguments = header.split("|")
    name, *synonyms = names.split()
    variants = [ast.unparse(node) for node in ast.parse(source).body]
    drawn = eval(f"({arguments.strip()},)", dict(_DRAWS))
    uses = {n.id for v in variants for n in ast.walk(ast.parse(v)) if isinstance(n, ast.Name)} & functions - {name}
    return Template(
        name=name,
        synonyms=tuple(synonyms),
        arguments=drawn,
        variants=tuple(variants),
        uses=frozenset(uses),
    )
