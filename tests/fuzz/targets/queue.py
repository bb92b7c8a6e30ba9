"""What a server answers about a queue: entries, hashes and the replies of scripts, any of which a stranger
with a right to write may have written."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import asdict
from random import Random
from typing import Any

from fuzz import valid
from fuzz.mutation import damage, mutate
from fuzz.target import Target
from fuzz.targets.codec import body
from fuzz.values import blob, integer, plain, some, subset, text, weighted
from millstream.cli.display.dead_letter_view import as_mapping, print_letter, print_line
from millstream.cli.display.terminal import answers
from millstream.client.session.job_status import JobStatus
from millstream.errors import ProtocolError
from millstream.wire import calls
from millstream.wire.calls import job_calls
from millstream.wire.calls.lane_calls import take
from millstream.wire.calls.scripts import ScriptCall, texts
from millstream.wire.keys import QueueKeys, is_job_id
from millstream.wire.messages import record
from millstream.wire.messages.job_messages import State
from millstream.wire.messages.record import JOB_FIELDS, log_entry, parse_event, partial_result
from millstream.wire.messages.script_replies import LogEntry
from millstream.wire.state import dead_letter
from millstream.wire.state.heartbeat import Heartbeat
from millstream.wire.state.queue_info import QueueInfo, read_queue

SHARD = QueueKeys("q").shard(0)
BAD = (ProtocolError,)


class Reply:
    """A client of redis-py that has one answer to everything."""

    def __init__(self, reply: Any) -> None:
        self._reply = reply

    async def _answer(self, *_: Any, **__: Any) -> Any:
        return self._reply

    execute_command = hgetall = hmget = xrange = _answer


def now(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


def raw(chance: Random, value: bytes) -> bytes:
    """Mostly as it is: what is damaged everywhere is refused at the first look."""
    return weighted(chance, (80, lambda _: value), (14, lambda c: damage(c, value)), (6, blob))


def bytes_of(chance: Random) -> bytes:
    return weighted(
        chance, (2, lambda c: valid.number(integer(c))), (2, lambda c: text(c).encode()), (1, blob)
    )


def fields_of(chance: Random, fields: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Some of a hash's or an entry's fields, here and there damaged, among others."""
    kept = {name: raw(chance, value) for name, value in fields.items() if chance.random() < 0.95}
    if chance.random() < 0.2:
        kept[chance.choice((b"", b"x", b"\xff", b"id", b"of_a_newer_version"))] = blob(chance)
    return kept


# --- lane entries


def lane_fields(chance: Random) -> dict[bytes, bytes]:
    job_id = chance.choice((b"0-a", b"0-invoice:17", b"12-" + b"x" * 200))
    version = chance.choice((b"1", b"1", b"1", b"2", b"0", b"-1", b"999999999"))
    return fields_of(chance, {b"id": job_id, b"v": version, b"b": body(chance, valid.request)})


def _lane(chance: Random) -> tuple[bytes, Any]:
    fields: Any = lane_fields(chance)
    if chance.random() < 0.3:
        fields = valid.flat(fields)
    return b"%d-%d" % (chance.randrange(2**42), chance.randrange(9)), fields


def _read_lane(case: tuple[bytes, Any]) -> None:
    entry = calls.lane_entry("batch", *case)
    assert is_job_id(entry.job_id), entry.job_id
    assert type(entry.version) is int
    assert type(entry.payload) is bytes


# --- token log


def log_entries(chance: Random) -> tuple[bytes, Any]:
    kind = chance.choice((b"d", b"d", b"d", b"m", b"e"))
    bodies: dict[bytes, Callable[[], bytes]] = {
        b"d": lambda: body(chance, valid.delta),
        b"m": lambda: b"",
        b"e": lambda: chance.choice(valid.STATES).encode(),
    }
    entry_id = b"%d-%d" % (chance.randrange(1, 4), chance.randrange(6))
    fields: Any = fields_of(chance, {b"k": kind, b"b": bodies[kind]()})
    return raw(chance, entry_id), valid.flat(fields) if chance.random() < 0.3 else fields


def _read_log(case: list[tuple[bytes, Any]]) -> None:
    entries = [log_entry(*one) for one in case]
    merged = record.merged_choices(entries)
    assert [choice.index for choice in merged] == sorted({choice.index for choice in merged})


def _event(chance: Random) -> bytes:
    entry_id, fields = log_entries(chance)
    parts = dict(zip(fields[::2], fields[1::2], strict=True)) if isinstance(fields, list) else fields
    return raw(chance, b"%b %b %b" % (entry_id, parts.get(b"k", b"d"), parts.get(b"b", b"")))


def _read_event(message: bytes) -> None:
    entry = parse_event(message)
    assert parse_event(f"{entry.cursor} {entry.kind} ".encode() + entry.body) == entry
    assert message.endswith(entry.body)
    assert entry.kind in (record.DELTA, record.MARKER, record.END)


# --- hashes


def job_hash(chance: Random) -> dict[str, bytes]:
    at = chance.randrange(2**41)
    numbers = {"attempt": chance.randrange(5), "seq": chance.randrange(9), "compiled_ms": at + 1}
    numbers |= {"died": 0, "died_alone": 0, "submits": 1, "cancel": 1, "version": 1}
    times = ("submitted_ms", "started_ms", "admitted_ms", "first_token_ms", "finished_ms")
    numbers |= {name: at + step for step, name in enumerate(times)}
    return {name: valid.number(value) for name, value in numbers.items()} | {
        "state": chance.choice(valid.STATES).encode(),
        "lane": b"batch",
        "owner": chance.choice((b"", b"worker-1")),
        "result": body(chance, valid.result),
        "requeued_from": b"0-b",
        "tenant": chance.choice((b"", b"someone")),
    }


def _job_row(chance: Random) -> tuple[list[bytes | None], list[tuple[bytes, Any]]]:
    fields = job_hash(chance)
    row = [raw(chance, fields[name]) if chance.random() < 0.9 else None for name in JOB_FIELDS]
    if chance.random() < 0.2:
        row[chance.randrange(len(row))] = bytes_of(chance)
    return row, some(chance, log_entries, 2)


def _read_job(case: tuple[list[bytes | None], list[tuple[bytes, Any]]]) -> None:
    row, log = case
    found = now(record.read_job(Reply(row), SHARD, "0-a"))
    if found is None:
        assert row[0] is None
        return
    JobStatus.of(found)
    partial_result(found, [log_entry(*entry) for entry in log])


def _heartbeat(chance: Random) -> list[bytes] | dict[bytes, bytes]:
    beat = {
        b"name": b"host-1", b"model": b"m", b"version_min": b"1", b"version_max": b"1", b"max_rows": b"64",
        b"token_capacity": valid.number(integer(chance)), b"rows_running": b"3",
    }  # fmt: skip
    for name, value in ((b"output_per_s", b"3.5"), (b"state", b"serving"), (b"rows_waiting", b"0")):
        beat[name] = bytes_of(chance) if chance.random() < 0.2 else value
    fields = fields_of(chance, subset(chance, beat, 0.97))
    return valid.flat(fields) if chance.random() < 0.3 else fields


def _read_heartbeat(case: Any) -> None:
    beat = Heartbeat.parse(texts(case))
    assert Heartbeat.parse({name: str(value) for name, value in asdict(beat).items()}) == beat


def _meta(chance: Random) -> dict[bytes, bytes]:
    shards = chance.choice((b"1", b"4", b"1024", bytes_of(chance)))
    pubsub = chance.choice((b"plain", b"sharded"))
    return fields_of(
        chance, {b"shards": shards, b"pubsub": pubsub, b"version_min": b"1", b"version_max": b"1"}
    )


def _read_meta(case: dict[bytes, bytes]) -> None:
    info: QueueInfo | None = now(read_queue(Reply(case), "q"))
    if info is None:
        assert not case
        return
    assert 1 <= info.shards <= 1024, f"a queue of {info.shards} shards"
    info.keys("q").shard(info.shards - 1)


# --- dead letters


def _letter(chance: Random) -> tuple[bytes, dict[bytes, bytes]]:
    fields = {
        b"id": b"0-a", b"reason": chance.choice((b"engine_died", text(chance).encode())), b"v": b"1",
        b"lane": b"batch", b"attempts": valid.number(integer(chance)), b"died": b"2",
        b"b": body(chance, valid.request),
    }  # fmt: skip
    entry_id = b"%d-%d" % (chance.choice((0, 1, 2**41, 2**64 - 1)), chance.randrange(3))
    return entry_id, fields_of(chance, fields)


def _read_letter(case: tuple[bytes, dict[bytes, bytes]]) -> None:
    entry, fields = case
    place = dead_letter.Place(0, entry.decode())
    listing = dead_letter.list_dead(SHARD, shard=0, before=None, count=1, most_bytes=9)
    [listed] = now(calls.run(Reply([(entry, 3, valid.flat(fields))]), listing))
    letter = now(dead_letter.read_letter(Reply([(entry, fields)]), SHARD, place))
    assert letter is not None
    assert dead_letter.Place.parse(listed.id) == dead_letter.Place.of(letter) == place
    with answers.capture() as shown:
        print_line(listed)
        print_letter(letter, None)
    as_mapping(letter)
    assert "\x1b" not in shown.get(), "what a stranger wrote reaches the terminal"
    assert letter.request is not None


# --- scripts

_CLAIM = calls.Claim("0-a", "1-1", "w", 1)
_LOG = [[b"1-0", [b"k", b"m", b"b", b""]], [b"1-1", [b"k", b"d", b"b", b"\x80"]]]
_ENTRY = [b"id", b"0-a", b"v", b"1", b"b", b"\x81\xa6prompt\xa1x"]
SCRIPTS: dict[str, tuple[ScriptCall[Any], Any]] = {
    "submit": (
        job_calls.submit(
            SHARD, job_id="0-a", lane="batch", payload=b"x", digest="d", version=1, deadline_ms=None,
            stream=False, max_entries=9, max_bytes=99,
        ),
        [b"accepted", b"queued", 1, 10, b""],
    ),
    "cancel": (calls.cancel(SHARD, job_id="0-a", ttl_ms=1), b"requested"),
    "expire_one": (calls.expire_one(SHARD, job_id="0-a", ttl_ms=1), 1),
    "forget": (calls.forget(SHARD, job_id="0-a"), b"forgotten"),
    "start": (
        calls.start(SHARD, _CLAIM, lane="batch", nonce="n"),
        [1, 1, 0, 0, 0, 12, b"", _LOG],
    ),
    "append": (calls.append(SHARD, _CLAIM, seq=1, body=b"x", publish=True), [b"ok", 1]),
    "renew": (calls.renew(SHARD, lane="batch", owner="w", held=[("0-a", "1-1")]), [[b"0-a"], [b"0-b"]]),
    "finish": (
        calls.finish(
            SHARD, _CLAIM, lane="batch", state=State.COMPLETED, result=b"", seq=1, delta=None, ttl_ms=1
        ),
        b"ok",
    ),
    "retry": (calls.retry(SHARD, _CLAIM, lane="batch", delay_ms=1), b"fenced"),
    "release": (calls.release(SHARD, _CLAIM, lane="batch"), b"already"),
    "isolate": (calls.isolate(SHARD, _CLAIM, alone=True, died=0, died_alone=0), b"ok"),
    "promote": (calls.promote(SHARD, limit=9), [b"0-a", b"0-b"]),
    "expire": (calls.expire(SHARD, limit=9, ttl_ms=1), [b"0-a"]),
    "reclaim": (
        calls.reclaim(SHARD, lane="batch", owner="w", overdue=[("1-1", "v")], min_idle_ms=1, died=True),
        [[b"1-1", 2, _ENTRY]],
    ),
    "take": (take(SHARD, owner="w", max_entries=9, max_bytes=99), [[1, b"1-1", _ENTRY]]),
}  # fmt: skip


def _script(chance: Random) -> tuple[str, Any]:
    name = chance.choice(list(SCRIPTS))
    reply = SCRIPTS[name][1]
    return name, reply if chance.random() < 0.2 else mutate(chance, reply, _reply)


def _reply(chance: Random) -> Any:
    """What a server may send: no floats, no texts, no maps."""
    drawn = plain(chance, 2)
    return drawn if isinstance(drawn, int | bytes | list | None) else blob(chance)


def _run_script(case: tuple[str, Any]) -> None:
    name, reply = case
    found = now(calls.run(Reply(reply), SCRIPTS[name][0]))
    if name == "start" and found.started:
        assert all(isinstance(entry, LogEntry) for entry in found.log)


TARGETS = (
    Target("lane-entries", _lane, _read_lane, BAD, share=3),
    Target("token-logs", lambda chance: some(chance, log_entries), _read_log, BAD, share=3),
    Target("published", _event, _read_event, BAD, share=3),
    Target("job-hashes", _job_row, _read_job, BAD, share=3),
    Target("heartbeats", _heartbeat, _read_heartbeat, BAD, share=2),
    Target("queue-metadata", _meta, _read_meta, BAD, share=2),
    Target("dead-letters", _letter, _read_letter, BAD, share=0.1),
    Target("script-replies", _script, _run_script, BAD, share=3),
)
