"""The noise is part of what a stored result means: its values never change."""

from __future__ import annotations

import numpy as np

from millstream_worker.engine.brain.batch.noise import row_key, splitmix64, uniform


def test_splitmix64_reference_values() -> None:
    """The first five outputs for state 1234567, as published with the reference implementation."""
    states = np.full(5, 1234567, np.uint64)
    assert splitmix64(states, np.arange(5, dtype=np.int32)).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_known_values() -> None:
    values = {
        (0, 0, 0): 0.13870941014555427,
        (0, 0, 1): 0.9711020828012883,
        (0, 1, 0): 0.18383979100743952,
        (42, 0, 0): 0.3869742762400409,
        (-1, 15, 1000): 0.40614156943799773,
        (2**63 - 1, 3, 2**24): 0.9006493697988569,
    }
    keys = np.array([row_key(seed, choice) for seed, choice, _ in values], np.uint64)
    indices = np.array([index for _, _, index in values], np.int32)
    assert uniform(keys, indices).tolist() == list(values.values())


def test_neighbouring_seeds_choices_and_indices_share_nothing() -> None:
    """1,000 seeds x 4 choices x 50 outputs: all values differ, and they fill the ten tenths evenly."""
    keys = np.array([row_key(seed, choice) for seed in range(1000) for choice in range(4)], np.uint64)
    values = uniform(np.repeat(keys, 50), np.tile(np.arange(50, dtype=np.int32), len(keys)))
    assert len(np.unique(values)) == len(values)
    assert 0 <= values.min() < values.max() < 1
    shares = np.bincount((values * 10).astype(int)) / len(values)
    assert np.abs(shares - 0.1).max() < 0.003  # 4.5 standard deviations
