"""Limits of single tokens, as the engine gets them and as they are held meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.engine.ready import INFO
from support.models import tokenizers
from support.models.spelling import with_words
from support.workers.jobs import held_job
from transformers import PreTrainedTokenizerFast

from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import Request
from millstream.wire.messages.sampling import SamplingParams
from millstream.wire.messages.script_replies import StartReply
from millstream_worker.intake.preparation.grammar_request import limits_of
from millstream_worker.intake.preparation.job_bounds import JobBounds
from millstream_worker.intake.preparation.prepare_job import forget_input, prepare
from millstream_worker.jobs.engine_request import engine_request
from millstream_worker.text.model import TextModel
from millstream_worker.text.reasoning import ThoughtStart

MODEL = TextModel(PreTrainedTokenizerFast(tokenizer_object=with_words(tokenizers.build("byte-level"))))


@pytest.mark.parametrize("start", [ThoughtStart.OPEN, ThoughtStart.AMID, ThoughtStart.POSSIBLE])
def test_a_budget_counts_a_thought_that_the_prompt_began(start: ThoughtStart) -> None:
    sampling = SamplingParams(thinking_token_budget=3)
    request = Request.model_validate({"messages": [{"role": "user", "content": "x"}], "sampling": sampling})
    limits = limits_of(request, start, MODEL, INFO.vocab_size)
    assert limits is not None
    assert MODEL.think is not None
    begin = MODEL.think.begin if start is ThoughtStart.POSSIBLE else None
    assert (limits.thought_begin, limits.thought_end) == (begin, MODEL.think.end)


def test_allowed_tokens_are_held_as_bits_alone() -> None:
    size = 2**18
    sampling = SamplingParams(allowed_token_ids=(0, 9, size - 1))
    job = held_job(payload=codec.encode(Request(prompt="the", sampling=sampling)))
    prepare(job, StartReply(True), MODEL, replace(INFO, vocab_size=size), JobBounds(0, 0, 2**26))
    forget_input(job)
    assert job.request.sampling.allowed_token_ids is None
    limits = engine_request(job).limits
    assert limits is not None
    assert limits.allowed == b"\x01\x02" + bytes(size // 8 - 3) + b"\x80"
