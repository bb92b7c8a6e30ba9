"""Whatever reading a message raises ends its own job: the worker goes on, nobody is charged, and what the
exception says reaches nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis
from support.servers.servers import Server
from support.workers.counting_worker import assert_nothing_left, until_running, write_tokenizer
from support.workers.jobs import held_job
from support.workers.work import SHARD, Work, answer, raw_submission, record_of
from tokenizers import Regex, pre_tokenizers

from millstream import AsyncClient, JobFailed, State
from millstream.errors import InvalidRequest
from millstream.wire import calls
from millstream.wire.messages import codec
from millstream_worker.intake import admission, job_preparer
from millstream_worker.jobs.net import Net
from millstream_worker.observe.metrics import Metrics

SECRET = "w7777"
PANIC = f"{'a' * 40} {SECRET}"  # more retries than Onig allows
TEMPLATE = (  # shows calls as Hermes' and Qwen's do
    "{% macro again(x) %}{{ again(x) }}{% endmacro %}{% for m in messages %}{{ m.content }} "
    "{% if m.role == 'endless' %}{{ again(1) }}{% endif %}"
    "{% if m.role == 'refused' %}{{ raise_exception(m.tool_calls[0].function.arguments.a) }}{% endif %}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}{% endfor %}{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
)


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Words, as every tokenizer of these tests; but its pattern for spaces may take any time."""
    spaces = pre_tokenizers.Split(Regex(r"(a|a)*b|\s+"), "removed")
    return write_tokenizer(tmp_path_factory.mktemp("strange"), chat=True, template=TEMPLATE, spaces=spaces)


def called(arguments: str, role: str = "assistant") -> dict[str, Any]:
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    turns = [{"role": "user", "content": SECRET}, {"role": role, "tool_calls": [call]}]
    return {"version": 3, "messages": turns}


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def multiple(digits: int) -> dict[str, Any]:
    text = f'{{"type":"integer","multipleOf":1{"0" * digits}}}'
    return {"version": 3, "prompt": "w1", "response_format": {"type": "json_schema", "text": text}}


CALLS = "messages[1].tool_calls[0].function.arguments"
# What only other clients send, and what no client can know; the error's code and field.
UNREADABLE: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "arguments too deep for a template": (called(nested(600)), "bad_request", CALLS),
    "arguments too deep for a parser": (called(nested(5000)), "bad_request", CALLS),
    "deep and long": (called(nested(30_000)), "bad_request", CALLS),
    "kwargs": (
        {"messages": [{"role": "user", "content": "w1"}], "chat_template_kwargs": json.loads(nested(400))},
        "bad_request",
        "chat_template_kwargs",
    ),
    "a number of 400 digits": (multiple(400), "bad_request", "response_format.text"),
    "a number of 4,200 digits": (multiple(4200), "bad_request", "response_format.text"),
    "a number of 5,000 digits": (multiple(5000), "bad_request", "response_format.text"),
    "an endless template": (
        {"messages": [{"role": "endless", "content": "w1"}]}, "bad_request", "messages"
    ),
    "half of a surrogate pair": (called(r'{"a": "\ud800"}'), "bad_request", "messages"),
    "one that the template quotes": (called(r'{"a": "\ud800"}', "refused"), "bad_request", "messages"),
    "a panic": ({"prompt": PANIC}, "unreadable_request", None),
    "a panic in a thread": ({"prompt": PANIC + " w1" * 3000}, "unreadable_request", None),
    "a panic of a job that is put off": ({"prompt": PANIC + " w1" * 30_000}, "unreadable_request", None),
    "a panic at a prediction": ({"prompt": "w1", "prediction": PANIC}, "unreadable_request", None),
}  # fmt: skip


async def sent(redis_client: Redis, name: str, fields: dict[str, Any]) -> str:
    job_id = f"0-{name}"
    call = raw_submission(job_id, codec.pack(fields), version=fields.get("version", 1))
    await calls.run(redis_client, call)
    return job_id


async def test_an_error_in_reading_fails_its_job_and_charges_nobody(
    server: Server, client: AsyncClient, redis_client: Redis, strange: Path, tmp_path: Path
) -> None:
    work = Work(server, strange, tmp_path)
    work.hold(2)
    with structlog.testing.capture_logs() as lines:
        async with work(context=100_000) as worker:
            neighbour = await client.submit("w1", max_tokens=4)
            await until_running(client, neighbour)
            ids = {
                await sent(redis_client, str(number), UNREADABLE[name][0]): name
                for number, name in enumerate(UNREADABLE)
            }
            ends = await client.wait_many(list(ids), timeout_s=60)
            assert (await record_of(redis_client, neighbour.id)).state is State.RUNNING
            work.go(2)
            assert (await client.wait(neighbour.id, timeout_s=30)).text == "w2 w3 w4 w5"
            assert await answer(client, "w5", 2) == "w6 w7", "it serves on"
            counted = worker.metric("unreadable_requests_total")
            assert worker.metric("engine_restarts_total") == 0
    for job_id, name in ids.items():
        failed = ends[job_id]
        _, code, field = UNREADABLE[name]
        assert isinstance(failed, JobFailed), name
        assert (failed.result.error.code, failed.result.error.field) == (code, field), (name, failed)
        record = await record_of(redis_client, job_id)
        assert (record.attempt, record.died, record.died_alone) == (1, 0, 0), name
        if code == "unreadable_request":
            assert "PanicException" in failed.result.error.message
            assert "retry-limit" not in failed.result.error.message
    record = await record_of(redis_client, neighbour.id)
    assert (record.attempt, record.died) == (1, 0)
    assert counted == sum(code == "unreadable_request" for _, code, _ in UNREADABLE.values()) == 4
    told = [line for line in lines if "trace" in line]
    assert [(line["error"], line["log_level"]) for line in told] == [("PanicException", "error")], "once"
    assert "token_count.py" in told[0]["trace"]
    assert SECRET not in str(lines)
    assert "retry-limit" not in str(lines)
    await assert_nothing_left(redis_client)


class Panic(BaseException):
    """As a library in Rust raises it."""


RAISED: list[tuple[BaseException, str]] = [
    (ZeroDivisionError(SECRET), "unreadable_request"), (KeyError(SECRET), "unreadable_request"),
    (MemoryError(SECRET), "unreadable_request"), (StopIteration(SECRET), "unreadable_request"),
    (Panic(SECRET), "unreadable_request"),
    (BaseExceptionGroup(SECRET, [Panic(SECRET)]), "unreadable_request"),
    (RecursionError(SECRET), "bad_request"), (OverflowError(SECRET), "bad_request"),
]  # fmt: skip
PROMPTS = {"short": "w9", "long": "w9" + " w9" * 3000, "put off": "w9" + " w9" * 30_000}


def raising(error: BaseException, only: Callable[..., bool], otherwise: Callable[..., Any]) -> Any:
    """A function that raises this error for the calls that it is meant for."""

    def function(*given: Any) -> Any:
        if only(*given):
            raise error
        return otherwise(*given)

    return function


@pytest.mark.parametrize(("error", "code"), RAISED, ids=lambda value: type(value).__name__)
async def test_any_exception_ends_only_the_job_whose_reading_raised_it(
    monkeypatch: pytest.MonkeyPatch, client: AsyncClient, redis_client: Redis, work: Work,
    error: BaseException, code: str,
) -> None:  # fmt: skip
    """In the loop and in threads; of a suspect, too."""
    prepare = raising(error, lambda job, *_: b"w9" in job.entry.payload, job_preparer.prepare)
    monkeypatch.setattr(job_preparer, "prepare", prepare)
    bad = [await client.submit(prompt, max_tokens=2) for prompt in PROMPTS.values()]
    suspect = await client.submit("w9", max_tokens=2)
    await redis_client.hset(SHARD.job(suspect.id), mapping={"died": 2})
    async with work(context=100_000):
        ends = await client.wait_many([job.id for job in (*bad, suspect)], timeout_s=30)
        assert await answer(client, "w1", 2) == "w2 w3"
    for end in ends.values():
        assert isinstance(end, JobFailed)
        assert end.reason == code
        assert SECRET not in str(end)
        assert type(error).__name__ in str(end) or isinstance(error, StopIteration)  # a coroutine raises none
    assert (await record_of(redis_client, suspect.id)).died == 2
    await assert_nothing_left(redis_client)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (job_preparer, "cache_key"),
        (job_preparer, "earlier_choices"),
        (admission, "outline"),
        (admission, "earlier_choices"),
    ],
)
async def test_so_does_one_of_every_part_of_reading(
    monkeypatch: pytest.MonkeyPatch, client: AsyncClient, work: Work, module: Any, name: str
) -> None:
    """Earlier choices are read of a job that is put off, or that has failed."""
    function = getattr(module, name)
    monkeypatch.setattr(module, name, raising(Panic(SECRET), lambda *_: asked.is_set(), function))
    asked = asyncio.Event()
    async with work(context=100_000, result_cache=2**20) as worker:
        asked.set()
        prompt = PROMPTS["put off"] if module is admission else "w9"
        fields = (
            {"token_ids": [1000]}
            if name == "earlier_choices" and module is job_preparer
            else {"prompt": prompt}
        )
        job = await client.submit(**fields, max_tokens=2)
        with pytest.raises(JobFailed) as failed:
            await client.wait(job.id, timeout_s=30)
        asked.clear()
        assert await answer(client, "w1", 2) == "w2 w3"
        assert worker.metric("unreadable_requests_total") == 1
    assert failed.value.reason == ("bad_request" if "token_ids" in fields else "unreadable_request")


def test_what_ends_a_task_or_the_process_passes_the_net() -> None:
    for kind in (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit):
        job = held_job()
        with pytest.raises(kind), Net(Metrics(CollectorRegistry())).around(job):
            raise kind
        assert job.end.state is State.RUNNING


def test_the_first_reason_stands() -> None:
    job, net = held_job(), Net(Metrics(CollectorRegistry()))
    for error in (InvalidRequest("prompt", "x", "is \ud800"), ZeroDivisionError("x")):
        with net.around(job):
            raise error
    assert job.end.error is not None
    assert (job.end.error.code, job.end.error.message) == ("bad_request", "prompt: is \\ud800 (got 'x')")
