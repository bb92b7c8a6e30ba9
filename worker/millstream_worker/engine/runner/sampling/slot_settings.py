"""Holds the sampling settings of the rows in the batch, by slot, as plain arrays on the host."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream_worker.engine.protocol.request import SamplingSpec

Settings = NDArray[np.void]  # [rows] of _FIELDS

_FIELDS = np.dtype(
    [
        ("temperature", "f8"),
        ("top_p", "f8"),
        ("top_k", "i8"),
        ("min_p", "f8"),
        ("repetition", "f8"),
        ("presence", "f8"),
        ("frequency", "f8"),
        ("min_tokens", "i8"),
        ("biased", "?"),
        ("logprobs", "?"),
        ("top_logprobs", "i8"),
    ],
    align=True,  # torch takes no strides that are not a multiple of the element
)
_COLDEST = 1e-5  # below it a float32 softmax is an argmax with extra rounding
_LEAST_PENALTY = 1e-20  # below it a float32 logit that is divided by it is infinite
_FEW = 1024  # up to here the heaviest tokens are selected rather than all of them sorted


class SamplingMethod(Enum):
    """The way a row is sampled. Rows are grouped by it, so that only those that need a sort are sorted."""

    GREEDY = auto()
    BY_ID = auto()  # no filter, or min-p alone: the CDF runs in token id order
    BY_RANK_OF_FEW = auto()  # a small top_k: the heaviest tokens are selected
    BY_RANK = auto()  # top_p, or a large top_k: the vocabulary is sorted


def empty(max_rows: int) -> Settings:
    return np.zeros(max_rows, _FIELDS)


def settings_of(spec: SamplingSpec, vocab_size: int) -> Any:
    """Returns one row's settings. A top_k that is off becomes the vocabulary's size: every row has one."""
    return np.array(
        (
            spec.temperature,
            spec.top_p,
            min(spec.top_k or vocab_size, vocab_size),
            spec.min_p,
            max(spec.repetition_penalty, _LEAST_PENALTY),
            spec.presence_penalty,
            spec.frequency_penalty,
            spec.min_tokens if spec.end_ids else 0,
            bool(spec.logit_bias),
            spec.top_logprobs is not None,
            spec.top_logprobs or 0,
        ),
        _FIELDS,
    )


def plain(settings: Any) -> Any:
    """True for greedy rows without log-probabilities, or anything that changes their logits."""
    changed = settings["biased"] | penalised(settings) | (settings["min_tokens"] > 0)
    return greedy(settings) & ~(changed | settings["logprobs"])


def greedy(settings: Any) -> Any:
    return (settings["temperature"] < _COLDEST) | (settings["top_k"] == 1)


def penalised(settings: Any) -> Any:
    return (settings["repetition"] != 1) | (settings["presence"] != 0) | (settings["frequency"] != 0)


def penalties(settings: Settings) -> NDArray[np.float64]:
    """Returns [3, rows]: repetition, presence, frequency."""
    return np.stack([settings[name] for name in ("repetition", "presence", "frequency")])


def columns(settings: Settings, noise: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns [4, rows]: temperature, top_p, min_p, noise."""
    return np.stack([settings["temperature"], settings["top_p"], settings["min_p"], noise])


def methods(settings: Settings, vocab_size: int) -> Iterator[tuple[SamplingMethod, NDArray[np.int64]]]:
    """Yields the rows of each method, for the methods that have any."""
    coldest = greedy(settings)
    ranked = ~coldest & ((settings["top_k"] < vocab_size) | (settings["top_p"] < 1))
    few = settings["top_k"] <= _FEW
    members = {
        SamplingMethod.GREEDY: coldest,
        SamplingMethod.BY_ID: ~coldest & ~ranked,
        SamplingMethod.BY_RANK_OF_FEW: ranked & few,
        SamplingMethod.BY_RANK: ranked & ~few,
    }
    for method, mask in members.items():
        if mask.any():
            yield method, np.flatnonzero(mask)
