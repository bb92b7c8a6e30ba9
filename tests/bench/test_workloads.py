"""The workloads are the same everywhere and for ever: other engines' figures were measured on these ids."""

from __future__ import annotations

import hashlib
import json

import pytest
from ops.bench.workloads import NAMES, make

DIGESTS = {
    "decode": "942c079d3e9f",
    "document": "b58b6ee3f0e8",
    "shared": "48eaf09cc512",
    "shareddoc": "ae4ec5c4988c",
    "ragged": "d1b32b4b9544",
    "nano": "96238024a2cd",
    "a": "53b97a16c4df",
    "r": "9d5ca7f4f5a0",
    "b": "5a755d879152",
    "c": "d8da839fdb0c",
    "single": "a8d6826c5567",
    "128to128": "c26138402bc0",
    "1000to1000": "71a017450514",
    "last": "429b5929d102",
}


@pytest.mark.slow
def test_prompts_and_lengths_are_those_of_earlier_figures() -> None:
    found = {}
    for name in NAMES:
        work = make(name, 32_000)
        text = json.dumps([work.prompts, work.output_lengths])
        found[name] = hashlib.sha256(text.encode()).hexdigest()[:12]
    assert found == DIGESTS


def test_shared_tokens_are_what_all_prompts_begin_with() -> None:
    work = make("c", 32_000)
    assert work.shared_tokens == 200
    assert work.distinct_prompt_tokens == 200 + 64 * 30
    assert make("a", 32_000).shared_tokens == 0
