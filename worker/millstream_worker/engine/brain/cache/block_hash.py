"""Hashes of the content of KV blocks: 128 bits, chained, so that one hash identifies a block and all before
it.

Everything that changes KV for the same tokens (model, KV dtype, adapter, salt) is part of the chain's root.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 16


def root_hash(hash_seed: bytes, *scopes: str) -> bytes:
    """The root of a chain: blocks are shared only under the same seed and the same scopes."""
    root = blake2b(digest_size=DIGEST_BYTES)
    for part in (hash_seed, *(scope.encode("utf-8", "surrogatepass") for scope in scopes)):
        # the length distinguishes ("ab", "c") from ("a", "bc")
        root.update(len(part).to_bytes(8, "little") + part)
    return root.digest()


def extend_chain(
    chain: list[bytes],
    root: bytes,
    tokens: NDArray[np.int32],
    block_size: int,
    more: Mapping[int, bytes] = MappingProxyType({}),
) -> None:
    """Append the hashes of the full blocks in `tokens`, which follow the blocks of `chain`. `more`: what else
    the content of a block depends on, by its number: the images that begin in it."""
    data = np.ascontiguousarray(tokens, dtype="<i4").tobytes()
    block_bytes = 4 * block_size
    parent = chain[-1] if chain else root
    for end in range(block_bytes, len(data) + 1, block_bytes):
        content = parent + data[end - block_bytes : end]
        if more:
            content += more.get(len(chain), b"")
        parent = blake2b(content, digest_size=DIGEST_BYTES).digest()
        chain.append(parent)
