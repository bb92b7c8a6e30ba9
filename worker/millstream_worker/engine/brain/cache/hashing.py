"""Names for the content of KV blocks: 128-bit hashes, chained, so that one hash stands for a block and all
before it.

What makes KV differ for the same tokens (model, KV dtype, adapter, salt) goes into the root of the chain.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 16


def root_hash(hash_seed: bytes, *scopes: str) -> bytes:
    """Where a chain starts: blocks are shared only under the same seed and the same scopes."""
    root = blake2b(digest_size=DIGEST_BYTES)
    for part in (hash_seed, *(scope.encode("utf-8", "surrogatepass") for scope in scopes)):
        root.update(
            len(part).to_bytes(8, "little") + part
        )  # the length keeps ("ab", "c") from being ("a", "bc")
    return root.digest()


def extend_chain(chain: list[bytes], root: bytes, tokens: NDArray[np.int32], block_size: int) -> None:
    """Append the hashes of the full blocks in `tokens`, which follow on the blocks that `chain` already
    names."""
    data = np.ascontiguousarray(tokens, dtype="<i4").tobytes()
    block_bytes = 4 * block_size
    parent = chain[-1] if chain else root
    for end in range(block_bytes, len(data) + 1, block_bytes):
        parent = blake2b(parent + data[end - block_bytes : end], digest_size=DIGEST_BYTES).digest()
        chain.append(parent)
