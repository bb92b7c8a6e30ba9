"""A row draws the same token alone, in any batch, in any slot; and its state follows it through the steps."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine.sampling_steps import Row, distribution, draw, draw_plan

from millstream_worker.engine.brain.batch.plan import RowLoad
from millstream_worker.engine.protocol.request import SamplingSpec
from millstream_worker.engine.runner.sampling.numpy_chooser import NumpyChooser
from millstream_worker.engine.runner.sampling.sampler import PIECE_ELEMENTS, Sampler

VOCAB = 37

specs = st.builds(
    SamplingSpec,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.9, 0.4]),
    top_k=st.sampled_from([0, 1, 4, 36]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    presence_penalty=st.sampled_from([0.0, 1.0]),
    frequency_penalty=st.sampled_from([0.0, -0.5]),
    logit_bias=st.sampled_from([(), ((3, 4.0), (30, -7.0))]),
    min_tokens=st.sampled_from([0, 3]),
    end_ids=st.sampled_from([(), (0, 36)]),
    top_logprobs=st.sampled_from([None, 0, 5]),
)
tokens = st.integers(0, VOCAB - 1)
rows = st.builds(
    lambda seed, *rest: Row(np.random.default_rng(seed).standard_normal(VOCAB).astype(np.float32) * 2, *rest),
    st.integers(0, 2**32),
    specs,
    st.floats(0, 1, exclude_max=True),
    st.lists(tokens, max_size=6).map(tuple),
    st.lists(tokens, max_size=6).map(tuple),
)


@settings(max_examples=60)
@given(st.lists(rows, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_a_row_draws_in_a_batch_what_it_draws_alone(batch: list[Row], chance: st.DataObject) -> None:
    slots = list(range(20))
    chance.shuffle(slots)  # type: ignore[attr-defined]
    together = draw(batch, slots[: len(batch)])
    alone = [draw([row]) for row in batch]

    assert together.tokens.tolist() == [drawn.tokens[0] for drawn in alone]
    assert together.logprobs == {
        index: drawn.logprobs[0] for index, drawn in enumerate(alone) if drawn.logprobs
    }
    assert all(distribution(row)[token] > 0 for row, token in zip(batch, together.tokens, strict=True))


@pytest.mark.parametrize("vocab", [1, 2, 3, 127, 128, 129, 50_257])
def test_odd_vocabularies_and_batch_sizes_change_nothing(vocab: int) -> None:
    """Vectorised loops treat a tail apart; a row's numbers must not depend on where in memory it lies."""
    chance = np.random.default_rng(vocab)
    methods = [SamplingSpec(), SamplingSpec(top_p=0.95), SamplingSpec(top_k=3), SamplingSpec(min_p=0.01)]
    batch = [
        Row(chance.standard_normal(vocab).astype(np.float32), methods[index % 4], float(chance.random()))
        for index in range(9)
    ]

    for count in (1, 2, 9):
        assert draw(batch[:count]).tokens.tolist() == [draw([row]).tokens[0] for row in batch[:count]]


def test_more_rows_than_are_weighed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(0)
    batch = [
        Row(chance.standard_normal(VOCAB).astype(np.float32), noise=float(chance.random())) for _ in range(11)
    ]
    whole = draw(batch).tokens
    monkeypatch.setitem(PIECE_ELEMENTS, "cpu", 4 * VOCAB)

    assert draw(batch).tokens.tolist() == whole.tolist()


def test_penalties_count_what_is_drawn_step_by_step() -> None:
    """Five steps with the history kept on the device equal first steps of rows loaded with that history."""
    spec = SamplingSpec(repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.9)
    logits = np.zeros(VOCAB, np.float32)
    logits[:4] = (2.0, 1.9, 1.8, 1.7)
    sampler, output = Sampler(VOCAB, 3, "cpu", NumpyChooser()), []
    sampler.load(RowLoad(2, spec, (1,), ()))

    for step in range(5):
        drawn = sampler.sample(torch.from_numpy(logits)[None], draw_plan([2], [step], [0.1]))
        assert sampler.last_tokens[2] == drawn.tokens[0]
        again = draw([Row(logits, spec, 0.1, (1,), tuple(output))])
        output.append(int(sampler.collect(drawn).tokens[0]))
        assert again.tokens[0] == output[-1]

    assert len(set(output)) > 2


def test_a_slot_forgets_the_row_before() -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[7] = 1.0
    heavy = SamplingSpec(
        temperature=0.0,
        repetition_penalty=9.0,
        presence_penalty=2.0,
        logit_bias=((7, -100.0), (9, 50.0)),
        min_tokens=5,
        end_ids=(7,),
    )
    sampler = Sampler(VOCAB, 2, "cpu", NumpyChooser())
    light = SamplingSpec(temperature=0.0, presence_penalty=0.1)
    others = SamplingSpec(temperature=0.0, logit_bias=((8, 0.5),), min_tokens=1, end_ids=(3,))

    assert draw([Row(logits, heavy, 0.5, (7,), (7,))], [1], sampler).tokens.tolist() == [9]
    for spec in (SamplingSpec(temperature=0.0), light, others):
        assert draw([Row(logits, spec)], [1], sampler).tokens.tolist() == [7]


def test_histories_are_kept_while_the_table_of_histories_grows() -> None:
    spec = SamplingSpec(temperature=0.0, presence_penalty=2.0)
    logits = np.arange(VOCAB, 0, -1).astype(np.float32)  # 0 is the most likely, then 1, 2, …
    rows_of = [Row(logits, spec, output=tuple(range(count))) for count in range(6)]
    sampler = Sampler(VOCAB, 6, "cpu", NumpyChooser())
    for slot, row in enumerate(rows_of):
        sampler.load(RowLoad(slot, spec, row.prompt, row.output))

    plan = draw_plan([5, 0, 3, 1, 4, 2], [0] * 6, [0.5] * 6)
    drawn = sampler.sample(torch.from_numpy(logits).repeat(6, 1), plan)

    assert sampler.collect(drawn).tokens.tolist() == [
        draw([rows_of[slot]]).tokens[0] for slot in plan.row_slots
    ]
    assert drawn.tokens.unique().numel() > 1


def test_the_logits_stay_as_they_were() -> None:
    logits = torch.randn(3, VOCAB)
    before = logits.clone()
    sampler = Sampler(VOCAB, 3, "cpu", NumpyChooser())
    for slot, spec in enumerate(
        [SamplingSpec(logit_bias=((1, 5.0),)), SamplingSpec(presence_penalty=1.0), SamplingSpec(top_p=0.5)]
    ):
        sampler.load(RowLoad(slot, spec, (), (1, 2)))
    sampler.sample(logits, draw_plan([0, 1, 2], [2, 2, 2], [0.3] * 3))

    assert torch.equal(logits, before)


def test_half_precision_logits_and_a_step_that_draws_nothing() -> None:
    sampler = Sampler(VOCAB, 2, "cpu", NumpyChooser())
    sampler.load(RowLoad(0, SamplingSpec(top_p=0.9), (), ()))
    logits = torch.randn(1, VOCAB, dtype=torch.bfloat16)
    row = Row(logits[0].float().numpy(), SamplingSpec(top_p=0.9), 0.7)

    assert sampler.sample(logits, draw_plan([0], [0], [0.7])).tokens.tolist() == draw([row]).tokens.tolist()
    assert sampler.collect(sampler.sample(logits[:0], draw_plan([], [], []))).tokens.tolist() == []


@pytest.mark.parametrize(
    "spec",
    [
        SamplingSpec(temperature=0),
        SamplingSpec(),
        SamplingSpec(min_p=0.1),
        SamplingSpec(top_p=0.5, min_p=0.1),
        SamplingSpec(top_k=2),
    ],
)
def test_a_row_of_no_numbers_is_reported_and_harms_no_other(spec: SamplingSpec) -> None:
    for value, place in product((np.nan, np.inf, -np.inf), (0, 9, VOCAB - 1)):
        chance = np.random.default_rng(5)
        sound = [Row(chance.standard_normal(VOCAB).astype(np.float32), spec, 0.4) for _ in range(3)]
        logits = sound[1].logits.copy()
        logits[slice(None) if value == -np.inf else place] = value
        asked = replace(spec, top_logprobs=2)
        drawn = draw([sound[0], Row(logits, asked, 0.4), sound[2]])

        assert drawn.non_finite == (1,)
        assert drawn.tokens.tolist() == [draw([sound[0]]).tokens[0], 0, draw([sound[2]]).tokens[0]]
        assert drawn.logprobs == {}


def test_ids_outside_the_vocabulary_are_no_harm() -> None:
    spec = SamplingSpec(temperature=0, logit_bias=((VOCAB, 9.0), (3, 50.0)), min_tokens=1, end_ids=(10**6,))

    assert draw([Row(np.zeros(VOCAB, np.float32), spec)]).tokens.tolist() == [3]
