"""Every supported architecture against plain transformers: one by one, eager, float32.

The same rows run ragged, in chunks, sharing prefixes and being preempted. Several are longer than the
sliding window (12) and the original RoPE length (32), one fills the context to its last position.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.engine.planning import Segment, pack
from support.engine.serving import logits_of, runner_of, serve
from support.models.checkpoints import (
    CASES,
    CONTEXT,
    MECHANISMS,
    RECURRENT,
    VOCABULARY,
    generate,
    logits,
    plain,
    quiet,
    tolerance,
)

from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.model.load import LoadedModel
from millstream_worker.engine.runner.model_config.model_types import PROVEN

CLEAR = 1e-3  # least distance of the two highest logits at every token of a row: rounding must not decide
BLOCK = 4
TIERED = [pytest.param(case, marks=() if case in MECHANISMS else pytest.mark.slow) for case in CASES]
Load = Callable[[str], LoadedModel]


@dataclass(frozen=True)
class Text:
    """A prompt, what transformers makes of it, and its logits [prompt + output, vocabulary] there."""

    prompt: list[int]
    output: list[int]
    logits: torch.Tensor

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output

    @property
    def clear(self) -> bool:
        first, second = self.logits[len(self.prompt) - 1 : -1].topk(2).values.unbind(-1)
        return bool((first - second).min() > CLEAR)

    @property
    def logprobs(self) -> list[float]:
        """Of the output."""
        rows = self.logits[len(self.prompt) - 1 : -1].log_softmax(-1)
        return [float(row[token]) for row, token in zip(rows, self.output, strict=True)]


class Texts:
    """Texts by plain transformers."""

    def __init__(self, folder: Path) -> None:
        self._model = plain(folder)
        self._random = random.Random(5)

    def prompt(self, length: int) -> list[int]:
        return [self._random.randrange(3, VOCABULARY) for _ in range(length)]

    def text(self, length: int, tokens: int, prefix: list[int] | None = None) -> Text:
        """The greedy continuation of a random prompt, with a given beginning."""
        for _ in range(20):
            prompt = (prefix or []) + self.prompt(length - len(prefix or []))
            output = generate(self._model, prompt, tokens)
            text = Text(prompt, output, logits(self._model, prompt + output))
            if text.clear:
                return text
        raise AssertionError("outputs of this checkpoint hang on rounding; choose other weights")

    def mixed(self) -> list[Text]:
        """Three that share 30 tokens, one that fills the context, a short one."""
        shared = self.prompt(30)
        return [
            self.text(34, 14, shared),
            self.text(47, 14, shared),
            self.text(31, 14, shared),
            self.text(CONTEXT - 14, 14),
            self.text(3, 20),
        ]


@pytest.fixture
def texts(case: str, checkpoint: Callable[[str], Path]) -> Iterator[Texts]:
    with quiet():
        yield Texts(checkpoint(case))


def test_every_supported_model_type_has_a_case() -> None:
    assert {model_type for model_type, _ in CASES.values()} == PROVEN


@pytest.mark.parametrize("case", TIERED)
def test_the_batch_gives_the_tokens_of_generate(case: str, texts: Texts, load: Load) -> None:
    rows = texts.mixed()
    sampling = SamplingSpec(temperature=0.0, top_logprobs=0)
    requests = [
        EngineRequest(handle, tuple(row.prompt), len(row.output), sampling) for handle, row in enumerate(rows)
    ]
    again = EngineRequest(len(rows), tuple(rows[1].prompt), len(rows[1].output), sampling)
    arrivals = [*zip((0, 0, 1, 2, 2), requests, strict=True), (12, again)]

    served = serve(load(case), arrivals, blocks=60, block_size=BLOCK, pipeline_depth=len(case) % 2)

    for handle, row in enumerate([*rows, rows[1]]):
        assert served.tokens[handle] == row.output
        assert served.logprobs[handle] == pytest.approx(row.logprobs, abs=tolerance(case))
        assert served.reasons[handle] == "length"
    assert served.stats.preemptions_total > 0
    assert served.stats.prefix_hit_total >= 2 * 28  # two rows found the shared full blocks of another
    assert len({token for row in rows for token in row.output}) >= 10, "outputs too uniform to prove anything"


@pytest.mark.parametrize("case", [one for one in TIERED if one.values[0] not in RECURRENT])
def test_logits_and_their_dependence_on_every_part_of_the_cache(case: str, texts: Texts, load: Load) -> None:
    """Logits at every position of rows that are computed in pieces; then the last token of each row again,
    with one thing wrong: the same comparison must see it."""
    rows, off = [texts.text(length, 4) for length in (41, 9, 70)], tolerance(case)
    runner, storage = runner_of(load(case), blocks=40, block_size=BLOCK)
    blocks = [[*range(10, -1, -1), 19], [39, 12, 20, 13], [*range(21, 39), 14]]
    for start, end in ((0, 5), (5, 12), (12, 100)):
        pieces = [
            Segment(slot, row.tokens[start:end], start, blocks[slot], range(len(row.tokens[start:end])))
            for slot, row in enumerate(rows)
            if row.tokens[start:end]
        ]
        pieces.sort(key=lambda piece: len(piece.tokens) > 1)
        want = torch.cat([rows[piece.slot].logits[start:end] for piece in pieces])
        torch.testing.assert_close(logits_of(runner, pack(pieces, BLOCK)), want, atol=off, rtol=0)

    def distance(slot: int, tokens: list[int], *, shift: int = 0) -> float:
        """Of the last token's logits from transformers', when it is computed once more."""
        row, last = rows[slot], len(tokens) - 1
        again = pack([Segment(slot, tokens[last:], last, blocks[slot])], BLOCK)
        again.positions[:] += shift
        return float((logits_of(runner, again)[0] - row.logits[-1]).abs().max())

    for slot, row in enumerate(rows):
        last_full = blocks[slot][(len(row.tokens) - 1) // BLOCK - 1]
        assert distance(slot, row.tokens) < off
        assert distance(slot, row.tokens, shift=1) > 100 * off, "a wrong position goes unseen"
        kept = storage.copy_out(torch.tensor([last_full]))
        storage.copy_in(torch.tensor([last_full]), storage.copy_out(torch.tensor([blocks[slot - 1][0]])))
        assert distance(slot, row.tokens) > 100 * off, "a wrong block goes unseen"
        storage.copy_in(torch.tensor([last_full]), kept)
        assert distance(slot, row.tokens) < off
        gap = row.tokens[:-3] + row.tokens[-2:]
        logits_of(runner, pack([Segment(slot, gap, 0, blocks[slot])], BLOCK))
        assert distance(slot, gap) > 100 * off, "a missing token goes unseen"
