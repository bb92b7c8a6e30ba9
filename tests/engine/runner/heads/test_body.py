"""Body and head together give what the model gives, and the head is left what belongs to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.engine.planning import Segment, pack
from support.engine.serving import eager_of, logits_of, runner_of

from millstream_worker.engine.brain.batch.plan import LOGITS
from millstream_worker.engine.runner.heads.head import Head
from millstream_worker.engine.runner.model.anatomy import Argument
from millstream_worker.engine.runner.model.body import Body, CannotCut
from millstream_worker.engine.runner.model.load import LoadedModel

Load = Callable[[str], LoadedModel]
TOKENS = [5, 60, 33, 9, 120]


@torch.inference_mode()
def hidden_and_logits(loaded: LoadedModel) -> tuple[Body, Head, torch.Tensor, torch.Tensor]:
    """Of a row of 5 tokens, after its body and head."""
    runner, _ = runner_of(loaded, blocks=4, block_size=4)
    plan = pack([Segment(0, TOKENS, 0, [0, 1], range(5))], 4)
    body = Body(loaded.anatomy.body)
    eager_of(runner).attention.begin(plan)
    hidden = body(torch.tensor(TOKENS), torch.arange(5))
    return body, loaded.heads.heads[LOGITS], hidden, logits_of(runner, plan)


@pytest.mark.parametrize(
    "case", ["llama", "gpt2", "opt", "gemma2", "gemma4_text", "cohere", "granite", "gpt_oss", "phi"]
)
def test_body_and_head_are_the_model(case: str, load: Load) -> None:
    body, head, hidden, want = hidden_and_logits(load(case))
    wanted = torch.tensor([3, 1])

    assert hidden.shape == (5, body.width)
    assert hidden.dtype == body.dtype
    with torch.inference_mode():
        assert torch.allclose(head(hidden, None), want, atol=1e-5)
        assert torch.allclose(head(hidden, wanted), want[wanted], atol=1e-5)


def test_the_model_is_whole_again_after_the_head(load: Load) -> None:
    loaded = load("llama")
    _, head, hidden, want = hidden_and_logits(loaded)
    with torch.inference_mode():
        head(hidden, None)
    assert all("forward" not in vars(module) for module in loaded.model.modules())
    _, _, _, again = hidden_and_logits(loaded)
    assert torch.equal(again, want)


def refusal(loaded: LoadedModel, **changes: Any) -> str:
    body = loaded.anatomy.body
    assert body is not None
    with pytest.raises(CannotCut) as raised:
        Body(replace(body, **changes))
    return str(raised.value)


def test_what_cannot_be_cut(load: Load) -> None:
    loaded = load("llama")
    with pytest.raises(CannotCut, match="no module of their own"):
        Body(None)
    given = {"input_ids": Argument.TOKENS, "position_ids": Argument.POSITIONS}
    assert "as they are" in refusal(loaded, options={"input_ids": Argument.TOKENS})
    assert "in every step anew" in refusal(loaded, options=given | {"attention_mask": Argument.OTHER})
    assert "hidden states" in refusal(loaded, width=None)
