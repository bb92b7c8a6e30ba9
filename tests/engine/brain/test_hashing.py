from __future__ import annotations

from hashlib import blake2b

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from millstream_worker.engine.brain.cache.block_hash import extend_chain, root_hash

ROOT = root_hash(b"model", "")


def chain_of(tokens: list[int], block_size: int, root: bytes = ROOT) -> list[bytes]:
    chain: list[bytes] = []
    extend_chain(chain, root, np.array(tokens, np.int32), block_size)
    return chain


def test_a_hash_is_blake2b_of_its_parent_and_its_tokens() -> None:
    first, second = chain_of([1, 2, 3, 4, 5], 2)
    assert first == blake2b(ROOT + np.array([1, 2], "<i4").tobytes(), digest_size=16).digest()
    assert second == blake2b(first + np.array([3, 4], "<i4").tobytes(), digest_size=16).digest()


def test_only_full_blocks_have_hashes() -> None:
    assert [len(chain_of(list(range(n)), 4)) for n in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_roots_keep_seeds_and_scopes_apart() -> None:
    roots = {
        root_hash(b"model", ""),
        root_hash(b"model"),
        root_hash(b"mode", "l"),
        root_hash(b"model", "a", "bc"),
        root_hash(b"model", "ab", "c"),
        root_hash(b"other", ""),
        root_hash(b"model", "tenant \ud800"),  # a lone surrogate is text that JSON can carry
    }
    assert len(roots) == 7


@given(st.lists(st.integers(0, 2**31 - 1), max_size=40), st.integers(1, 5), st.integers(0, 40))
def test_in_pieces_or_at_once(tokens: list[int], block_size: int, cut: int) -> None:
    cut = min(cut, len(tokens)) // block_size * block_size
    chain = chain_of(tokens[:cut], block_size)
    extend_chain(chain, ROOT, np.array(tokens[cut:], np.int32), block_size)
    assert chain == chain_of(tokens, block_size)
