"""The families, their styles and their bugs."""

from __future__ import annotations

import ast
import copy
import sys
from random import Random
from typing import Any

import pytest

from longtail_repair.families import HELDOUT, TRAIN, Family
from longtail_repair.mutate import OPERATORS, mutate
from longtail_repair.names import draw_names, rename
from longtail_repair.style import restyle

FAMILIES = [*TRAIN, *HELDOUT]


def each(family: Family) -> Any:
    return pytest.param(family, id=family.name)


def namespace(family: Family, constants: dict[str, Any]) -> dict[str, Any]:
    functions: dict[str, Any] = dict(constants)
    for template in family.templates.values():
        exec(template.variants[0], functions)
    return functions


def values(source: str, name: str, cases: list[Any], functions: dict[str, Any]) -> list[str]:
    functions = dict(functions)
    exec(source, functions)
    return [repr(functions[name](*copy.deepcopy(case))) for case in cases]


def test_there_are_enough_families_and_held_out_ones_are_others():
    assert len(TRAIN) >= 16
    assert len(HELDOUT) >= 4
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    assert not {p for f in TRAIN for p in f.packages} & {p for f in HELDOUT for p in f.packages}
    assert not {p for f in FAMILIES for p in f.packages} & sys.stdlib_module_names


@pytest.mark.parametrize("family", [each(family) for family in FAMILIES])
def test_variants_and_styles_mean_the_same(family: Family):
    assert len(family.templates) >= 6
    assert len(family.modules) >= 6  # five files, and one name may be the package's
    rng = Random(family.name)
    constants = {name: rng.choice(options) for name, options in family.constants.items()}
    functions = namespace(family, constants)
    for name, template in family.templates.items():
        cases = [[draw(rng, constants) for draw in template.arguments] for _ in range(25)]
        expected = values(template.variants[0], name, cases, functions)
        assert len(set(expected)) > 1, f"{name} has one value only"
        for variant in template.variants:
            tree = ast.parse(rename(variant, draw_names(variant, frozenset(family.templates), rng)))
            restyle(tree.body[0], rng)
            assert values(ast.unparse(tree), name, cases, functions) == expected, name


def test_names_never_collide():
    rng = Random(0)
    for _ in range(50):
        source = (
            "def f(items, total):\n    acc = 0\n    for item in items:\n        acc += item\n    return acc + total"
        )
        mapping = draw_names(source, frozenset({"things", "f"}), rng)
        names = [mapping.get(name, name) for name in ("items", "total", "acc", "item")]
        assert len(set(names)) == 4
        assert "things" not in mapping.values()


def test_strings_and_attributes_keep_their_names():
    assert rename("x.count(count, 'count')", {"count": "n"}) == "x.count(n, 'count')"


def test_every_operator_makes_bugs():
    rng, seen = Random(0), set()
    for family in TRAIN:
        for template in family.templates.values():
            for _ in range(5):
                mutation = mutate(template.variants[0].replace("STEP", "4"), rng)
                if mutation is not None:
                    seen.add(mutation.operator)
                    assert mutation.source != template.variants[0]
                    assert ast.unparse(ast.parse(mutation.source)) == mutation.source  # its form tells nothing
    assert seen == set(OPERATORS)


@pytest.mark.parametrize(
    ("source", "operator", "expected"),
    [
        ("return a * b", "arithmetic", {"return a + b", "return a // b"}),
        ("return a < b", "comparison", {"return a > b"}),
        ("return a < b", "boundary", {"return a <= b"}),
        ("return 5", "constant", {"return 6", "return 4"}),
        ("return a", "variable", {"return b"}),
        ("return a", "return", {"a"}),
        ("return pow(a, b)", "swap", {"return pow(b, a)"}),
        ("return a[-1]", "offbyone", {"return a[-2]"}),
        ("return list(range(a))", "offbyone", {f"return list(range({x}))" for x in ("a + 1", "a - 1", "1, a")}),
        ("if a:\n        return b\n    return a", "branch", {"return a"}),
        ("return a and b", "boolean", {"return a or b"}),
        ("if not a:\n        return b\n    return a", "boolean", {"if a:\n        return b\n    return a"}),
    ],
)
def test_an_operator_does_what_its_name_says(source: str, operator: str, expected: set[str]):
    text = f"def f(a, b):\n    {source}"
    rng = Random(0)
    made = [mutation for _ in range(300) if (mutation := mutate(text, rng)) is not None]
    assert {m.source.removeprefix("def f(a, b):\n    ") for m in made if m.operator == operator} == expected


def test_a_default_may_be_wrong():
    rng = Random(0)
    made = [mutation for _ in range(99) if (mutation := mutate("def f(a=3):\n    return a", rng)) is not None]
    assert {m.source.splitlines()[0] for m in made if m.operator == "default"} == {
        "def f(a=4):",
        "def f(a=6):",
        "def f(a=0):",
    }
