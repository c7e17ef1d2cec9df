"""The prefix cache against a list of everything that was ever inserted."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.engines.pages import PagePool, pages_for
from longtail.engines.prefix import PrefixCache, common_prefix
from longtail.models.forward import ModelShape
from longtail.models.native import PAGE

SHAPE = ModelShape(layers=1, heads=1, kv_heads=1, head_dim=1, vocab=4, max_length=1000)

# runs of few ids share prefixes and depart at any place in a page
sequences = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 20)), min_size=1, max_size=4).map(
    lambda runs: [token for token, length in runs for _ in range(length)]
)


def fill(pool: PagePool, ids: list[int]) -> list[int]:
    """Pages of one's own; each slot holds a digest of the ids up to it."""
    pages = [pool.take() for _ in range(pages_for(len(ids)))]
    for index in range(len(ids)):
        pool.storage_PF[pages[index // PAGE], index % PAGE] = digest(ids[: index + 1])
    return pages


def digest(ids: list[int]) -> float:
    return float(hash(tuple(ids)) % 1_000_003)


@settings(deadline=None)
@given(st.lists(sequences, min_size=1, max_size=12), sequences, st.sampled_from([32, 64, 10_000]))
def test_a_match_is_the_longest_prefix_and_its_pages_are_right(inserted, wanted, limit):
    pool = PagePool(SHAPE, torch.device("cpu"))
    cache = PrefixCache(limit, pool)
    for ids in inserted:
        pages = fill(pool, ids)
        cache.insert(ids, pages)
        for page in pages:
            pool.drop(page)
        assert cache.tokens <= limit
    match = cache.match(wanted)
    longest = max(common_prefix(wanted, ids) for ids in inserted)
    assert match.tokens == longest if limit == 10_000 else match.tokens <= longest
    pages = [*match.pages, *([match.partial] if match.partial >= 0 else [])]
    assert len(pages) == pages_for(match.tokens)
    for index in range(match.tokens):
        assert pool.storage_PF[pages[index // PAGE], index % PAGE] == digest(wanted[: index + 1])
    cache.clear()
    assert sum(pool._holders) == 0
    assert sorted(pool._free) == list(range(len(pool._holders)))


def test_the_least_recently_used_leaf_goes_first():
    pool = PagePool(SHAPE, torch.device("cpu"))
    cache = PrefixCache(4 * PAGE, pool)
    shared = [0] * PAGE
    for last in (1, 2, 3):
        ids = [*shared, *[last] * PAGE]
        cache.insert(ids, fill(pool, ids))
    assert cache.match([*shared, *[1] * PAGE]).tokens == 2 * PAGE  # used again
    ids = [*shared, *[0] * PAGE]
    cache.insert(ids, fill(pool, ids))
    lengths = {last: cache.match([*shared, *[last] * PAGE]).tokens for last in (1, 2, 3, 0)}
    assert lengths == {1: 2 * PAGE, 2: PAGE, 3: 2 * PAGE, 0: 2 * PAGE}
