"""Steps: tokens from the device, steps that want no logits, rows that go wrong alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from support.engine.planning import Segment, greedy_loads, pack
from support.engine.serving import launch, logits_of, runner_of, serve
from support.models.checkpoints import generate, plain

from millstream_worker.engine.brain.batch.plan import RowLoad, TokenMasks
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.model.load import LoadedModel, load_model

Load = Callable[[str], LoadedModel]
PROMPT = [5, 60, 33, 9, 120, 77, 4]


def test_the_next_token_can_stay_on_the_device(load: Load, checkpoint: Callable[[str], Path]) -> None:
    runner, _ = runner_of(load("llama"), blocks=8, block_size=4)
    handles = [launch(runner, pack([Segment(2, PROMPT, 0, [3, 1, 6])], 4, greedy_loads([2])))]
    handles += [
        launch(runner, pack([Segment(2, [0], place, [3, 1, 6], from_device=True)], 4))
        for place in range(len(PROMPT), 11)
    ]

    tokens = [int(runner.settle(handle).tokens[0]) for handle in handles]

    assert tokens == generate(plain(checkpoint("llama")), PROMPT, 5)


@pytest.mark.parametrize("sampling", [SamplingSpec(temperature=0.0), SamplingSpec(temperature=1.1, seed=7)])
def test_one_step_ahead_gives_the_same_tokens(load: Load, sampling: SamplingSpec) -> None:
    arrivals = [(handle, EngineRequest(handle, tuple(PROMPT), 12, sampling)) for handle in range(3)]
    at_once, ahead = (serve(load("llama"), arrivals, blocks=60, pipeline_depth=depth) for depth in (0, 1))
    assert ahead.tokens == at_once.tokens
    assert ahead.reasons == at_once.reasons


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_a_masked_token_is_not_sampled(load: Load, temperature: float) -> None:
    loaded = load("llama")
    runner, _ = runner_of(loaded, blocks=8, block_size=4)
    for slot, allowed in enumerate((31, 77)):
        runner._sampler.load(RowLoad(slot, SamplingSpec(temperature=temperature), (1,), ()))
        bits = np.zeros((1, -(-loaded.vocab_size // 32)), np.uint32)
        bits[0, allowed // 32] = 1 << allowed % 32
        launched = runner.forward(pack([Segment(slot, PROMPT, 0, [3, 1])], 4))
        runner.sample(launched, TokenMasks(np.zeros(1, np.int32), bits.view(np.int32)))
        drawn = runner.settle(launched)
        assert (drawn.tokens.tolist(), drawn.non_finite) == ([allowed], ())


def test_a_chunk_before_the_last_wants_no_logits(load: Load) -> None:
    runner, _ = runner_of(load("llama"), blocks=8, block_size=4)
    first = runner.settle(
        launch(runner, pack([Segment(0, PROMPT[:3], 0, [3, 1], wanted=())], 4, greedy_loads([0])))
    )
    rest = runner.settle(launch(runner, pack([Segment(0, PROMPT[3:], 3, [3, 1])], 4)))
    whole = runner.settle(launch(runner, pack([Segment(0, PROMPT, 0, [4, 5])], 4)))
    assert first.tokens.shape == (0,)
    assert rest.tokens == whole.tokens


def test_a_row_without_numbers_is_named_and_harms_no_other(load: Load) -> None:
    loaded = load("llama")
    with torch.no_grad():
        loaded.model.get_input_embeddings().weight[99] = torch.nan
    runner, _ = runner_of(loaded, blocks=8, block_size=4)
    sound = Segment(0, PROMPT, 0, [3, 1])
    alone = runner.settle(launch(runner, pack([sound], 4, greedy_loads([0, 1]))))

    together = runner.settle(launch(runner, pack([sound, Segment(1, [7, 99, 8, 8, 8], 0, [2, 5])], 4)))
    after = runner.settle(
        launch(runner, pack([Segment(0, PROMPT, 0, [2, 5])], 4))
    )  # in the non-finite row's blocks

    assert together.non_finite == (1,)
    assert together.tokens[0] == alone.tokens[0] == after.tokens[0]
    assert after.non_finite == ()


def test_a_batch_in_bfloat16_agrees_with_transformers_but_for_rounding(
    checkpoint: Callable[[str], Path],
) -> None:
    loaded = load_model(str(checkpoint("qwen3")), dtype=torch.bfloat16, device=torch.device("cpu"))
    runner, _ = runner_of(loaded, blocks=8, block_size=4)
    logits = logits_of(runner, pack([Segment(0, PROMPT, 0, [3, 1], range(7))], 4))
    with torch.inference_mode():
        want = plain(checkpoint("qwen3"))(input_ids=torch.tensor([PROMPT])).logits[0]
    assert logits.dtype == torch.float32
    assert (logits - want).abs().max() < 0.25  # logits reach 6; bfloat16 has 8 bits


def test_sampled_tokens_do_not_depend_on_the_batch(load: Load) -> None:
    """Drawn alone or among others, in chunks or whole, preempted or not: float32 gives the same tokens."""
    sampling = SamplingSpec(temperature=1.1, top_p=0.95, seed=11)
    requests = [EngineRequest(handle, tuple(PROMPT * (handle + 1)), 24, sampling) for handle in range(5)]
    loaded = load("gemma2")
    alone = [serve(loaded, [(0, request)], blocks=60).tokens[request.handle] for request in requests]

    crowded = serve(
        loaded, [(0, request) for request in requests], blocks=26, step_tokens=9, pipeline_depth=1
    )

    assert crowded.stats.preemptions_total > 0
    assert [crowded.tokens[handle] for handle in range(5)] == alone
    assert len({token for tokens in alone for token in tokens}) > 20


def test_what_an_earlier_attempt_drew_is_continued(load: Load) -> None:
    sampling = SamplingSpec(temperature=1.0, seed=3, repetition_penalty=1.2)
    loaded = load("mistral")
    whole = serve(loaded, [(0, EngineRequest(0, tuple(PROMPT), 20, sampling))], blocks=60).tokens[0]
    begun = EngineRequest(0, tuple(PROMPT), 20, sampling, outputs=(tuple(whole[:9]),))
    assert serve(loaded, [(0, begun)], blocks=60).tokens[0] == whole[9:]
