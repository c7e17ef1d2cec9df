"""The prefix cache: a tree of pages, keyed by the token ids in them.

A node is one page; only a leaf may be partly filled. A prompt shares the full pages that it matches and copies the page
in which it departs. All nodes are of one policy version; clear() starts the next. Least recently used leaves go first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from longtail.engines.pages import PagePool
from longtail.models.native import PAGE


@dataclass(slots=True, eq=False)
class _Node:
    ids: tuple[int, ...]  # at most PAGE
    page: int
    parent: _Node | None
    children: dict[int, list[_Node]] = field(default_factory=dict[int, "list[_Node]"])  # by first id


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    pages: tuple[int, ...]  # full, to be shared
    partial: int = -1  # page whose first tokens match, to be copied; -1: none
    tokens: int = 0


class PrefixCache:
    """Not thread-safe; one owner."""

    def __init__(self, limit: int, pool: PagePool) -> None:
        self._limit = limit
        self._pool = pool
        self._root = _Node((), -1, None)
        self._order: OrderedDict[_Node, None] = OrderedDict()  # a node stands after its children: the first is a leaf

    @property
    def enabled(self) -> bool:
        return self._limit > 0

    @property
    def tokens(self) -> int:
        """Room taken, in tokens of full pages."""
        return len(self._order) * PAGE

    def match(self, ids: Sequence[int]) -> Match:
        """The longest cached prefix."""
        pages: list[int] = []
        node, start, partial = self._root, 0, -1
        while start < len(ids):
            best, shared = None, 0
            for child in node.children.get(ids[start], ()):
                length = common_prefix(child.ids, ids[start : start + PAGE])
                if length > shared:
                    best, shared = child, length
            if best is None:
                break
            node, start = best, start + shared
            if shared < PAGE:
                partial = best.page
                break
            pages.append(best.page)
        self._touch(node)
        return Match(pages=tuple(pages), partial=partial, tokens=start)

    def insert(self, ids: Sequence[int], pages: Sequence[int]) -> None:
        """Keep the pages of `ids` that are not yet here."""
        if not self.enabled:
            return
        node = self._root
        for index, page in enumerate(pages):
            node = self._child(node, tuple(ids[index * PAGE : (index + 1) * PAGE]), page)
        self._touch(node)
        while self.tokens > self._limit:
            self._evict()

    def clear(self) -> None:
        for node in self._order:
            self._pool.drop(node.page)
        self._order.clear()
        self._root.children.clear()

    def _child(self, node: _Node, ids: tuple[int, ...], page: int) -> _Node:
        siblings = node.children.setdefault(ids[0], [])
        for child in siblings:
            if child.ids[: len(ids)] == ids:
                return child
            if child.page == page:  # the same page, filled further
                child.ids = ids
                return child
        child = _Node(ids, page, node)
        siblings.append(child)
        self._pool.share(page)
        self._order[child] = None
        return child

    def _touch(self, node: _Node | None) -> None:
        while node is not None and node is not self._root:
            self._order.move_to_end(node)
            node = node.parent

    def _evict(self) -> None:
        node, _ = self._order.popitem(last=False)
        assert node.parent is not None
        assert not node.children
        siblings = node.parent.children[node.ids[0]]
        siblings.remove(node)
        if not siblings:
            del node.parent.children[node.ids[0]]
        self._pool.drop(node.page)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Number of equal leading ids."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
