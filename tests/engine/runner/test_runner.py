"""Steps: tokens from the device, steps that want no logits, rows that go wrong alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from support.engine.planning import Segment, greedy_loads, pack
from support.engine.serving import launch, logits_of, runner_of
from support.models.checkpoints import generate, plain

from millstream_worker.engine.brain.batch.plan import RowLoad, TokenMasks
from millstream_worker.engine.protocol.request import SamplingSpec
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


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_a_masked_token_is_not_sampled(load: Load, temperature: float) -> None:
    loaded = load("llama")
    runner, _ = runner_of(loaded, blocks=8, block_size=4)
    for slot, allowed in enumerate((31, 77)):
        runner.sampler.load(RowLoad(slot, SamplingSpec(temperature=temperature), (1,), ()))
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


def test_a_bfloat16_batch_agrees_with_transformers(
    checkpoint: Callable[[str], Path],
) -> None:
    loaded = load_model(str(checkpoint("qwen3")), dtype=torch.bfloat16, device=torch.device("cpu"))
    runner, _ = runner_of(loaded, blocks=8, block_size=4)
    logits = logits_of(runner, pack([Segment(0, PROMPT, 0, [3, 1], range(7))], 4))
    with torch.inference_mode():
        want = plain(checkpoint("qwen3"))(input_ids=torch.tensor([PROMPT])).logits[0]
    assert logits.dtype == torch.float32
    assert (logits - want).abs().max() < 0.25  # logits reach 6; bfloat16 has 8 bits
