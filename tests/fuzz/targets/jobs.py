"""Delivered jobs on their way through a worker's front: payload and token log in; the engine's request,
deltas and the result out."""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from support.engine.ready import INFO
from support.workers.counting_worker import write_tokenizer
from support.workers.jobs import held_job

from fuzz import valid
from fuzz.mutation import mutate
from fuzz.target import Target
from fuzz.targets.codec import body, pack
from fuzz.values import weighted
from millstream.errors import InvalidRequest, ProtocolError
from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import Result, State
from millstream.wire.messages.record import merged_choices
from millstream.wire.messages.script_replies import LogEntry, StartReply
from millstream_worker.engine.protocol.frames import Add, FrameBuffer, encode
from millstream_worker.engine.protocol.request import EngineRequest
from millstream_worker.intake.preparation.job_bounds import JobBounds
from millstream_worker.intake.preparation.prepare_job import prepare
from millstream_worker.intake.preparation.resumed_rows import LogDamaged
from millstream_worker.jobs import encoding
from millstream_worker.jobs.engine_request import engine_request
from millstream_worker.jobs.job import Job
from millstream_worker.text.model import TextModel

BOUNDS = JobBounds(prompt_tokens=0, output_tokens=0, result_bytes=2**20)
ENGINE = replace(INFO, vocab_size=valid.VOCAB, eos_ids=(999,), max_rows=8)

Case = tuple[bytes, list[bytes], int]  # payload, bodies of the log, what its sequence number is wrong by


@cache
def text_model() -> TextModel:
    with tempfile.TemporaryDirectory() as folder:
        return TextModel.load(write_tokenizer(Path(folder), chat=True), valid.VOCAB)


def _case(chance: Random) -> Case:
    if chance.random() < 0.5:
        return body(chance, valid.request), [], 0
    asked = small_request(chance)
    log = [told(chance, asked) for _ in range(chance.randrange(4))]
    return pack(asked), log, chance.choice((0, 0, 0, 0, 0, 0, 1, -1))


def small_request(chance: Random) -> dict[str, Any]:
    """A request that can be computed."""
    asked = valid.request(chance)
    asked["sampling"] = asked.get("sampling", {}) | {"max_tokens": 100, "min_tokens": 0}
    return asked


def told(chance: Random, asked: dict[str, Any]) -> bytes:
    """What an earlier attempt has told: like a worker's, or changed."""
    index = chance.randrange(asked["sampling"].get("n", 1))
    ids = valid.token_ids(chance)
    told: dict[str, Any] = {"index": index, "token_ids": ids, "text": "".join(f" w{one}" for one in ids)}
    if asked["sampling"].get("logprobs"):
        told["logprobs"] = [valid.token_logprob(chance) for _ in ids]
    if chance.random() < 0.1:
        told["finish_reason"] = chance.choice(("stop", "length"))
    return weighted(
        chance,
        (6, lambda _: pack({"choices": [told]})),
        (3, lambda c: pack(mutate(c, {"choices": [told]}))),
        (1, lambda c: body(c, valid.delta)),
    )


def _compute(case: Case) -> None:
    """As intake and delivery do, with an engine that draws the same tokens for every row."""
    payload, bodies, wrong = case
    job = held_job(payload=payload, number=2)
    log = tuple(LogEntry(1, number, "d", one) for number, one in enumerate(bodies, 1))
    prepare(job, StartReply(True, 2, max(0, len(log) + wrong), log=log), text_model(), ENGINE, BOUNDS)
    _check(engine_request(job))
    _draw(job, [1, 2, 999])
    _draw(job, [3])
    job.conclude(State.COMPLETED)
    job.take_delta()
    result = codec.decode(Result, job.result({"model": "m", "weights": "int8", "kv_format": "int8"}, 1))
    told = merged_choices(LogEntry(2, number, "d", one) for number, one in enumerate(job.log.written, 1))
    for choice in result.choices:
        same = [one for one in told if one.index == choice.index]
        assert "".join(one.text for one in same) == choice.text, "the result is not what was streamed"
        assert [one for part in same for one in part.token_ids] == list(choice.token_ids)
        assert choice.logprobs is None or len(choice.logprobs) == len(choice.token_ids)


def _check(request: EngineRequest) -> None:
    """What the engine relies on; it dies of anything else."""
    asked = request.sampling
    numbers = [asked.temperature, asked.top_p, asked.min_p, asked.repetition_penalty, asked.presence_penalty]
    numbers += [asked.frequency_penalty, *(bias for _, bias in asked.logit_bias)]
    assert all(map(math.isfinite, numbers)), numbers
    ids = {*request.prompt, *(token for output in request.outputs for token in output), *asked.end_ids}
    ids |= {token for token, _ in asked.logit_bias}
    assert all(0 <= token < ENGINE.vocab_size for token in ids), f"token ids {min(ids)} to {max(ids)}"
    assert 1 <= len(request.prompt) < ENGINE.context_length
    assert all(len(output) <= request.max_tokens for output in request.outputs)
    assert len(request.prompt) + request.max_tokens <= ENGINE.context_length
    [sent] = FrameBuffer().feed(encode(Add(request)))
    assert sent == Add(request), "the frame says something else"


def _draw(job: Job, tokens: list[int]) -> None:
    """One flush's tokens for every row that goes on."""
    for row in job.rows:
        for token in tokens:
            if row.reason is not None or len(row.ids) >= job.input.max_tokens:
                break
            row.ids.append(token)
            if row.logprobs is not None:
                row.add_logprob(encoding.token_logprob(row.told(token, -0.5), []))
            if token in job.input.end_ids:
                row.reason = "stop"
            elif row.watched:
                row.feed()
    job.take_delta()


CLEAR = (ProtocolError, InvalidRequest, LogDamaged)
TARGETS = (Target("jobs", _case, _compute, CLEAR, share=3),)
