"""Random test arguments, as small combinators: draw(rng, constants) -> value. The names are short because the families
write hundreds of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

Constants = Mapping[str, Any]
Draw = Callable[[Random, Constants], Any]

_WORDS = ("a", "to", "it", "red", "cat", "sun", "map", "key", "box", "blue", "tree", "rain", "green", "house", "silver")


def i(low: int, high: int) -> Draw:
    """An int in low..high."""
    return lambda rng, _: rng.randint(low, high)


def near(name: str, spread: int = 3) -> Draw:
    """An int about a constant of the package, often exactly at it: boundaries show there."""

    def draw(rng: Random, constants: Constants) -> int:
        value = constants[name]
        return value + rng.choice((0, 0, 1, -1, rng.randint(-spread, spread), rng.randint(-value, value)))

    return draw


def up(name: str, spread: int = 3) -> Draw:
    """Like near, never negative."""
    inner = near(name, spread)
    return lambda rng, constants: abs(inner(rng, constants))


def some(item: Draw, low: int = 0, high: int = 5) -> Draw:
    """A list of low..high items."""
    return lambda rng, constants: [item(rng, constants) for _ in range(rng.randint(low, high))]


def li(low: int, high: int, shortest: int = 0, longest: int = 5) -> Draw:
    """A list of ints."""
    return some(i(low, high), shortest, longest)


def asc(low: int, high: int, shortest: int = 1, longest: int = 5) -> Draw:
    """A sorted list of distinct ints."""

    def draw(rng: Random, _: Constants) -> list[int]:
        return sorted(rng.sample(range(low, high + 1), rng.randint(shortest, longest)))

    return draw


def tup(*items: Draw) -> Draw:
    """A tuple."""
    return lambda rng, constants: tuple(item(rng, constants) for item in items)


def span(low: int, high: int) -> Draw:
    """A (start, end) pair with start <= end."""
    return lambda rng, _: tuple(sorted((rng.randint(low, high), rng.randint(low, high))))


def one(*values: Any) -> Draw:
    """One of the values."""
    return lambda rng, _: rng.choice(values)


def s(alphabet: str, shortest: int = 0, longest: int = 6) -> Draw:
    """A string over an alphabet."""
    return lambda rng, _: "".join(rng.choice(alphabet) for _ in range(rng.randint(shortest, longest)))


def word() -> Draw:
    """A short word."""
    return one(*_WORDS)


def phrase(low: int = 1, high: int = 3, gap: str = " ") -> Draw:
    """Some words with gaps between them."""
    return lambda rng, _: gap.join(rng.choice(_WORDS) for _ in range(rng.randint(low, high)))


def table(key: Draw, value: Draw, low: int = 1, high: int = 3) -> Draw:
    """A dict."""

    def draw(rng: Random, constants: Constants) -> dict[Any, Any]:
        return {key(rng, constants): value(rng, constants) for _ in range(rng.randint(low, high))}

    return draw


def grid(low: int, high: int, rows: int = 2, columns: int = 2) -> Draw:
    """A list of equally long rows of ints, at most rows x columns."""

    def draw(rng: Random, _: Constants) -> list[list[int]]:
        height, width = rng.randint(1, rows), rng.randint(1, columns)
        return [[rng.randint(low, high) for _ in range(width)] for _ in range(height)]

    return draw


def square(low: int, high: int, size: int = 2) -> Draw:
    """A size x size list of rows."""
    return lambda rng, _: [[rng.randint(low, high) for _ in range(size)] for _ in range(size)]


def graph(nodes: str = "abcd") -> Draw:
    """A dict from node to its sorted neighbours, every node present."""

    def draw(rng: Random, _: Constants) -> dict[str, list[str]]:
        used = nodes[: rng.randint(2, len(nodes))]
        return {
            node: sorted(rng.sample(used.replace(node, ""), rng.randint(0, min(2, len(used) - 1)))) for node in used
        }

    return draw
