"""The prefix cache: a radix tree of token ids whose nodes own keys and values.

All entries are of one policy version; clear() starts the next. Least recently used leaves go first.

Shapes: A layers, J key and value heads together, T tokens of a node, E head width.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Ids = NDArray[np.int64]


@dataclass(slots=True, eq=False)
class _Node:
    ids: Ids  # (T,)
    kv_AJTE: Tensor | None  # None: the root
    parent: _Node | None
    children: dict[int, _Node] = field(default_factory=dict[int, "_Node"])


class PrefixCache:
    """Not thread-safe; one owner."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.tokens = 0
        self._root = _Node(np.empty(0, np.int64), None, None)
        self._order: OrderedDict[_Node, None] = OrderedDict()  # a node stands behind its children: the first is a leaf

    @property
    def enabled(self) -> bool:
        return self._limit > 0

    def match(self, ids: Sequence[int], limit: int) -> list[Tensor]:
        """Keys and values of the longest cached prefix of at most `limit` ids, in pieces."""
        pieces: list[Tensor] = []
        node, start, wanted = self._root, 0, np.asarray(ids[:limit], np.int64)
        while start < len(wanted):
            child = node.children.get(int(wanted[start]))
            if child is None:
                break
            shared = common_prefix(child.ids, wanted[start:])
            assert child.kv_AJTE is not None
            pieces.append(child.kv_AJTE[:, :, :shared])
            node, start = child, start + shared
            if shared < len(child.ids):
                break
        self._touch(node)
        return pieces

    def insert(self, ids: Sequence[int], read: Callable[[int, int], Tensor]) -> None:
        """Keep the keys and values of `ids`; read(start, end) copies those that are not yet here."""
        if not self.enabled or len(ids) > self._limit:
            return
        node, start, wanted = self._root, 0, np.asarray(ids, np.int64)
        while start < len(wanted):
            child = node.children.get(int(wanted[start]))
            if child is None:
                node = self._add(node, wanted[start:].copy(), read(start, len(wanted)))
                break
            shared = common_prefix(child.ids, wanted[start:])
            start += shared
            node = child if shared == len(child.ids) else self._split(child, shared)
        self._touch(node)
        self._evict()

    def clear(self) -> None:
        self._root.children.clear()
        self._order.clear()
        self.tokens = 0

    def _add(self, parent: _Node, ids: Ids, kv_AJTE: Tensor) -> _Node:
        node = _Node(ids, kv_AJTE, parent)
        parent.children[int(ids[0])] = node
        self._order[node] = None
        self.tokens += len(ids)
        return node

    def _split(self, node: _Node, at: int) -> _Node:
        """Cut a node in two; both halves own their memory. Returns the upper one."""
        assert node.parent is not None
        assert node.kv_AJTE is not None
        upper = _Node(node.ids[:at].copy(), node.kv_AJTE[:, :, :at].clone(), node.parent)
        node.parent.children[int(upper.ids[0])] = upper
        node.ids, node.kv_AJTE, node.parent = node.ids[at:].copy(), node.kv_AJTE[:, :, at:].clone(), upper
        upper.children[int(node.ids[0])] = node
        self._order[upper] = None
        return upper

    def _touch(self, node: _Node | None) -> None:
        while node is not None and node is not self._root:
            self._order.move_to_end(node)
            node = node.parent

    def _evict(self) -> None:
        while self.tokens > self._limit:
            node, _ = self._order.popitem(last=False)
            assert node.parent is not None
            assert not node.children
            del node.parent.children[int(node.ids[0])]
            self.tokens -= len(node.ids)


def common_prefix(left: Ids, right: Ids) -> int:
    """Number of equal leading ids."""
    length = min(len(left), len(right))
    different = left[:length] != right[:length]
    return int(different.argmax()) if different.any() else length
