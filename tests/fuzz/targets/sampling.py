"""Whatever sampling parameters were let in, and whatever logits a model gives: tokens of the vocabulary, or a
row that is reported as non-finite."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np
from support.engine.sampling_steps import Row, draw

from fuzz import valid
from fuzz.mutation import mutate
from fuzz.target import Target
from fuzz.targets.codec import pack
from fuzz.values import subset
from millstream.errors import ProtocolError
from millstream.wire.messages import codec
from millstream.wire.messages.sampling import SamplingParams
from millstream_worker.engine.brain.batch.noise import row_key, uniform
from millstream_worker.engine.protocol.request import SamplingSpec

VOCAB = 32
EXTREMES: dict[str, tuple[Any, ...]] = {
    "temperature": (0, 1e-300, 1e-5, 9.999e-6, 1e-4, 10),
    "top_p": (5e-324, 1e-300, 0.5, 0.9999999999, 1),
    "top_k": (0, 1, 2, VOCAB - 1, VOCAB, VOCAB + 1, 2**31 - 1),
    "min_p": (0, 5e-324, 1e-30, 0.5, 1),
    "repetition_penalty": (5e-324, 1e-300, 1e-38, 0.1, 1, 10),
    "presence_penalty": (-2, 0, 5e-324, 2),
    "frequency_penalty": (-2, 0, 2),
    "seed": (-(2**63), -1, 0, 2**63 - 1),
    "min_tokens": (0, 1, 5, 2**24),
}  # fmt: skip

Case = tuple[list[bytes], str, int]  # each row's parameters, the shape of the logits, a seed


SHAPES = ("normal", "normal", "flat", "huge", "holes", "nan", "inf", "minus inf", "one")


def _case(chance: Random) -> Case:
    rows = [pack(_parameters(chance)) for _ in range(chance.choice((1, 1, 2, 3)))]
    return rows, chance.choice(SHAPES), chance.randrange(2**32)


def _parameters(chance: Random) -> dict[str, Any]:
    asked = valid.sampling(chance)
    for name in ("logit_bias", "stop_token_ids", "max_tokens"):
        asked.pop(name, None)
    asked |= subset(chance, {name: chance.choice(values) for name, values in EXTREMES.items()}, 0.3)
    if chance.random() < 0.3:
        asked["logit_bias"] = {
            str(chance.randrange(VOCAB)): chance.choice((-100, 100, 5e-324, -1.5)) for _ in range(3)
        }
    return mutate(chance, asked, most=2) if chance.random() < 0.1 else asked


def _draw(case: Case) -> None:
    parameters, shape, seed = case
    asked = [codec.decode(SamplingParams, one) for one in parameters]
    generator = np.random.default_rng(seed)
    rows = [
        Row(_logits(generator, shape), _spec(one), _noise(one), (1, 2, 2), tuple(range(3))) for one in asked
    ]
    drawn = draw(rows)
    for place, row in enumerate(rows):
        sound = bool(np.isfinite(row.logits).all())
        if place in drawn.non_finite:
            assert not sound or shape == "huge", "sound logits became unsound"
            continue
        token = int(drawn.tokens[place])
        assert 0 <= token < VOCAB
        assert not np.isneginf(row.logits[token]), "a token that the model has ruled out"
        if (logprobs := drawn.logprobs.get(place)) is not None:
            assert not math.isnan(logprobs.logprob)
            assert len(logprobs.top_ids) == row.spec.top_logprobs


def _spec(asked: SamplingParams) -> SamplingSpec:
    same = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
            "frequency_penalty", "min_tokens")  # fmt: skip
    return SamplingSpec(
        **{name: getattr(asked, name) for name in same},
        logit_bias=tuple((token % VOCAB, bias) for token, bias in asked.logit_bias.items()),
        end_ids=(0,),
        top_logprobs=asked.top_logprobs if asked.logprobs else None,
        seed=asked.seed or 0,
    )


def _noise(asked: SamplingParams) -> float:
    [noise] = uniform(np.array([row_key(asked.seed or 0, asked.n)], np.uint64), np.array([3], np.int32))
    assert 0 <= noise < 1
    return float(noise)


def _logits(generator: np.random.Generator, shape: str) -> Any:
    logits = generator.standard_normal(VOCAB).astype(np.float32)
    match shape:
        case "flat":
            logits[:] = 0
        case "huge":
            logits *= np.float32(1e37)
        case "holes":
            logits[generator.integers(VOCAB, size=20)] = -np.inf
        case "nan":
            logits[generator.integers(VOCAB)] = np.nan
        case "inf":
            logits[generator.integers(VOCAB)] = np.inf
        case "minus inf":
            logits[:] = -np.inf
        case "one":
            logits[1:] = -np.inf
    return logits


TARGETS = (Target("sampling", _case, _draw, (ProtocolError,), share=0.4),)
