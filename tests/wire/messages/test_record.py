"""What pollers and stream readers read."""

from __future__ import annotations

import pytest
from support.wire.desk import LONG_MS, Desk

from millstream.errors import ProtocolError
from millstream.wire.messages.choices import ChoiceDelta, Delta, TokenLogprob
from millstream.wire.messages.codec import encode
from millstream.wire.messages.job_messages import State
from millstream.wire.messages.record import parse_event, partial_result
from millstream.wire.messages.script_replies import LogEntry
from millstream.wire.versions import FIRST_VERSION, TAKEN


def delta(*choices: ChoiceDelta) -> bytes:
    return encode(Delta(choices=choices))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("state", "lost"), ("state", "l" * 5000), ("attempt", "two"), ("lane", b"\xff"),
        ("first_token_ms", "9" * 30),
    ],
)  # fmt: skip
async def test_a_damaged_record_is_a_protocol_error(desk: Desk, field: str, value: str | bytes) -> None:
    await desk.submit()
    await desk.redis.hset(desk.keys.job("0-a"), field, value)
    with pytest.raises(ProtocolError, match="0-a: its record is damaged") as failed:
        await desk.job()
    assert len(str(failed.value)) < 400


async def test_a_record_has_the_version_of_its_message(desk: Desk) -> None:
    """The records of the first version have no such field."""
    await desk.submit()
    await desk.redis.hset(desk.keys.job("0-a"), "version", TAKEN.high)
    assert (await desk.job()).version == TAKEN.high
    await desk.redis.hdel(desk.keys.job("0-a"), "version")
    assert (await desk.job()).version == FIRST_VERSION


@pytest.mark.parametrize(
    ("message", "entry"),
    [
        (b"1-1 d a b  c", LogEntry(1, 1, "d", b"a b  c")),
        (b"2-7 m ", LogEntry(2, 7, "m", b"")),
        (b"0-1 e cancelled", LogEntry(0, 1, "e", b"cancelled")),
        (b"1-1 d \x00\xff \n", LogEntry(1, 1, "d", b"\x00\xff \n")),
    ],
)
def test_published_messages(message: bytes, entry: LogEntry) -> None:
    assert parse_event(message) == entry


@pytest.mark.parametrize(
    "message", [b"", b"1-1", b"1-1 x body", b"1 d body", b"-1-1 d b", b"a-b d b", b"1-1  d"]
)
def test_a_message_that_is_no_entry_is_refused(message: bytes) -> None:
    with pytest.raises(ProtocolError, match="not an entry of a token log"):
        parse_event(message)


async def test_an_entry_of_an_unknown_kind_is_never_passed_over(desk: Desk) -> None:
    """A newer version wrote it, and it may be text."""
    held = await desk.begin()
    await desk.append(held, 1)
    await desk.redis.xadd(desk.keys.tokens("0-a"), {"k": "X", "b": "text"}, id="1-2")
    with pytest.raises(ProtocolError, match="this version knows: b'1-2' of kind b'X'"):
        await desk.log()
    with pytest.raises(ProtocolError, match="this version knows"):
        parse_event(b"1-2 X text")


async def test_the_partial_result_of_an_expired_job(desk: Desk) -> None:
    held = await desk.begin(deadline_ms=1)
    top = TokenLogprob(token_id=5, token="e", logprob=-0.5)
    await desk.append(held, 1, delta(ChoiceDelta(token_ids=(4, 5), text="He", logprobs=(top,))))
    await desk.append(held, 2, delta(ChoiceDelta(index=2, token_ids=(9,), text="Hi", finish_reason="stop")))
    new = await desk.take_over(held)
    await desk.append(new, 3, delta(ChoiceDelta(token_ids=(6,), text="llo")))
    await desk.expire()
    job = await desk.job()

    result = partial_result(job, await desk.log())
    told = [(one.index, one.text, one.token_ids, one.finish_reason) for one in result.choices]
    assert told == [(0, "Hello", (4, 5, 6), None), (2, "Hi", (9,), "stop")]
    assert result.choices[0].logprobs == (top,)
    assert result.choices[1].logprobs is None
    assert (result.state, result.usage.output_tokens, result.attempts) == (State.EXPIRED, 4, 2)
    assert result.error is not None
    assert result.error.code == "expired"
    assert result.timing.first_token_ms == job.first_token_ms
    assert result.timing.finished_ms == job.finished_ms


async def test_the_partial_result_of_a_job_that_never_ran(desk: Desk) -> None:
    await desk.submit(deadline_ms=LONG_MS)
    await desk.cancel()
    result = partial_result(await desk.job(), await desk.log())
    assert (result.state, result.choices, result.attempts) == (State.CANCELLED, (), 0)


async def test_a_log_entry_that_is_no_delta_is_a_protocol_error(desk: Desk) -> None:
    held = await desk.begin()
    await desk.append(held, 1, b"garbage")
    with pytest.raises(ProtocolError):
        partial_result(await desk.job(), await desk.log())
