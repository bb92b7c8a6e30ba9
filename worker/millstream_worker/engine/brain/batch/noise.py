"""The random numbers of sampling: one uniform per sample, a pure function of (seed, choice, output index), so
that a row samples the same tokens in any batch and in any attempt. It must never change: stored results
depend on it.

The generator is SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014);
output index i is the i-th number of the stream whose state starts at the row's key.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def row_key(seed: int, choice: int) -> int:
    """The initial state of a choice's stream; any integer seed, also a negative one."""
    return _mix(_mix(seed + _GAMMA) + (choice + 1) * _GAMMA)


def uniform(keys: NDArray[np.uint64], output_indices: NDArray[np.int32]) -> NDArray[np.float64]:
    """[L] numbers in [0, 1) with 53 random bits each, for [L] row keys and output indices."""
    bits = splitmix64(keys, output_indices) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def splitmix64(states: NDArray[np.uint64], indices: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Numbers at `indices` (from 0) of SplitMix64 streams that start at `states`; arrays wrap silently."""
    z = states + (indices.astype(np.uint64) + np.uint64(1)) * np.uint64(_GAMMA)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


def _mix(z: int) -> int:
    z &= _MASK
    z = (z ^ (z >> 30)) * _MIX_1 & _MASK
    z = (z ^ (z >> 27)) * _MIX_2 & _MASK
    return z ^ (z >> 31)
