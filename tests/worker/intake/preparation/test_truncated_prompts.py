"""Only the last tokens of a prompt of any length, and results that say which tokens those were."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engine.ready import INFO
from support.models.tokenizers import build
from support.workers.jobs import held_job
from transformers import PreTrainedTokenizerFast

from millstream.errors import InvalidRequest
from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import Request, Result, State
from millstream.wire.messages.script_replies import StartReply
from millstream_worker.intake.preparation.job_bounds import JobBounds
from millstream_worker.intake.preparation.prepare_job import forget_input, prepare
from millstream_worker.jobs.job import Job
from millstream_worker.text.model import TextModel
from millstream_worker.text.token_count import TokenCounter

CHAT = "{% for m in messages %}{{ m.content }}{% endfor %}"
TEXT = TextModel(PreTrainedTokenizerFast(tokenizer_object=build("byte-level"), chat_template=CHAT))
LONG = "the quick brown fox jumps over the lazy dog, déjà vu. " * 800
WHOLE = build("byte-level").encode(LONG).ids
BOUNDS = JobBounds(0, 0, 2**26)
LAST = tuple(WHOLE[-9:])


def prepared(last: int | None, bounds: JobBounds = BOUNDS, **fields: Any) -> Job:
    sampling = {"sampling": {"truncate_prompt_tokens": last}} if last else {}
    request = Request.model_validate(fields | sampling)
    job = held_job(payload=codec.encode(request))
    prepare(job, StartReply(True), TEXT, replace(INFO, context_length=512), bounds)
    return job


@pytest.mark.parametrize(
    "asked",
    [
        {"prompt": LONG},
        {"messages": [{"role": "user", "content": LONG}]},
        {"token_ids": WHOLE},
        {"prompt": LONG, "kind": "count"},
    ],
)
def test_only_the_last_tokens_of_a_long_prompt_are_used(asked: dict[str, Any]) -> None:
    assert prepared(9, **asked).input.prompt == LAST
    with pytest.raises(InvalidRequest, match="maximum context length is 512 tokens"):
        prepared(None, **asked)
    with pytest.raises(InvalidRequest, match="maximum context length is 512 tokens"):
        prepared(512, **asked)


def test_a_short_prompt_is_left_whole() -> None:
    assert prepared(99, prompt="the quick fox").input.prompt == tuple(
        TEXT.encode(Request(prompt="the quick fox"))
    )
    assert prepared(2**20, prompt="the").input.prompt == prepared(None, prompt="the").input.prompt


def test_no_more_than_the_end_of_a_text_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    encode = TokenCounter._encode

    def watched(self: TokenCounter, text: str) -> list[int]:
        sizes.append(len(text))
        return encode(self, text)

    monkeypatch.setattr(TokenCounter, "_encode", watched)
    assert prepared(9, prompt=LONG).input.prompt == LAST
    assert sum(sizes) < len(LONG) // 4


COUNTERS = {
    kind: TokenCounter(build(kind), 48)
    for kind in ("byte-level", "bpe-byte-fallback", "unigram-byte-fallback", "wordpiece", "metaspace")
}


@given(st.sampled_from(sorted(COUNTERS)), st.integers(1, 40), st.integers(0, 30), st.booleans())
def test_the_last_ids_are_those_of_the_whole(kind: str, last: int, times: int, special: bool) -> None:
    text = "the quick brown fox, déjà vu. <begin> 日本語、" + " the lazy  dog\n" * times
    whole = build(kind).encode(text, add_special_tokens=special).ids
    assert COUNTERS[kind].ids(text, add_special_tokens=special, last=last) == whole[-last:]


def test_a_result_has_the_prompts_ids_where_they_are_asked_for() -> None:
    for asked, ids in (({"return_token_ids": True}, LAST), ({}, None)):
        job = prepared(9, prompt=LONG, **asked)
        forget_input(job)
        job.conclude(State.COMPLETED)
        result = codec.decode(Result, job.result({}, 1))
        assert (result.prompt_token_ids, result.usage.prompt_tokens) == (ids, 9)
        assert job.result_bytes == (45 if ids else 0)


def test_a_job_that_ends_unread_shows_no_prompt() -> None:
    job = held_job(request=Request(prompt="x", return_token_ids=True))
    job.conclude(State.CANCELLED)
    assert codec.decode(Result, job.result({}, 1)).prompt_token_ids is None


def test_ids_that_no_result_can_hold_are_refused() -> None:
    bounds = JobBounds(0, 0, 8)
    with pytest.raises(InvalidRequest, match=r"^return_token_ids: .*MILLSTREAM_MAX_RESULT_BYTES"):
        prepared(9, bounds, prompt=LONG, return_token_ids=True)
    with pytest.raises(InvalidRequest, match=r"^sampling.max_tokens: .*may take 10 bytes"):
        prepared(None, bounds, prompt="the", return_token_ids=True, sampling={
            "max_tokens": 9, "truncate_prompt_tokens": 1})  # fmt: skip
