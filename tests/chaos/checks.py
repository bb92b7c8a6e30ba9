"""Judges an arena after its load has ended: what every accepted job came to, what every subscriber was told,
and what is left on the server. What counts as a violation is decided here and nowhere else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import pairwise

from support.workers.counting_worker import leftovers
from support.workers.word_engine import DAMAGE

from chaos import marks
from chaos.arena import LEASE_S, RENEW_S, Arena
from chaos.calls import told_of
from chaos.ledger import Accepted, Ended, Entry
from chaos.watcher import Sight, Turn
from millstream import Result, State
from millstream.wire.keys import QueueKeys, shard_of
from millstream.wire.messages.codec import MAX_RESULT_BYTES, decode
from millstream.wire.messages.record import JOB_FIELDS, job_record, log_entry, partial_result
from millstream.wire.messages.script_replies import JobRecord, LogEntry

PAGE = 200
HARM_LASTS_S = 5 * LEASE_S  # for which a worker that was stopped or partitioned may lose its jobs
CANCEL_SLACK_S = 2.0  # beyond one renewal: processes share two cores with all that the suite does
NO_DELAY = ("kill engine", "freeze engine", "cut pubsub", "clock jump", "submit again")  # of a cancellation
FILES = "{msgw"  # gateways' keys: files stay until they are deleted, and the lists of them and of batches
LATE_S = 0.5  # of this process' own loop: whatever was late then may have been the machine


@dataclass(frozen=True, slots=True)
class Violation:
    kind: str
    what: str
    job_id: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.job_id} {self.what}" if self.job_id else f"{self.kind}: {self.what}"


@dataclass(frozen=True, slots=True)
class Found:
    """A job as the server has it at the end; `record` None: it is not there."""

    record: JobRecord | None
    log: tuple[LogEntry, ...]

    @property
    def state(self) -> State | None:
        return None if self.record is None else self.record.state


async def judge(arena: Arena) -> list[Violation]:
    """All that is wrong with the jobs. The load has to be over, the server to answer."""
    await arena.watcher.look_at_all()
    violations = [Violation(*note) for note in arena.ledger.notes]
    entries = list(arena.ledger)
    for start in range(0, len(entries), PAGE):
        page = entries[start : start + PAGE]
        for entry, found in zip(page, await _find(arena, page), strict=True):
            violations += [Violation(kind, what, entry.id) for kind, what in _faults(arena, entry, found)]
    return violations + [Violation("dead letter", what) async for what in _letter_faults(arena)]


async def nothing_left(arena: Arena) -> list[Violation]:
    """The load is over and the workers are gone."""
    lines = [line for shard in arena.shards for line in await leftovers(arena.admin, shard)]
    stay = {QueueKeys(arena.queue).meta, *(key for shard in arena.shards for key in shard.kept_keys)}
    for node in await arena.nodes():
        lasting = [key.decode() async for key in node.scan_iter() if await node.ttl(key) == -1]
        lines += [f"{key} stays for ever" for key in lasting if key not in stay and not key.startswith(FILES)]
        for command in ("CHANNELS", "SHARDCHANNELS")[: 2 if arena.shards[0].sharded else 1]:
            channels = await node.execute_command("PUBSUB", command)
            ours = [channel.decode() for channel in channels if not channel.startswith(b"__")]  # Sentinel's
            lines += [f"{channel} is still subscribed to" for channel in ours]
    return [Violation("left", line) for line in lines]


def damages(arena: Arena) -> list[Violation]:
    """What engines found wrong with themselves: an audit, or their KV cache."""
    lines = [
        line for member in arena.crew.members for line in member.log.read_text(errors="replace").splitlines()
    ]
    return [Violation("engine", line) for line in lines if "AssertionError" in line or DAMAGE in line]


async def _find(arena: Arena, page: list[Entry]) -> list[Found]:
    async with arena.admin.pipeline(transaction=False) as pipeline:
        for entry in page:
            keys = arena.shards[shard_of(entry.id)]
            pipeline.hmget(keys.job(entry.id), JOB_FIELDS)
            pipeline.xrange(keys.tokens(entry.id))
        replies = await pipeline.execute()
    return [
        Found(job_record(entry.id, row), tuple(log_entry(*one) for one in rows))
        for entry, row, rows in zip(page, replies[::2], replies[1::2], strict=True)
    ]


def _faults(arena: Arena, entry: Entry, found: Found) -> Iterator[tuple[str, str]]:
    sight = arena.watcher.sights.get(entry.id, Sight())
    for trouble in () if entry.excused else entry.troubles:
        yield "client", trouble
    if found.record is None:
        if entry.accepted is Accepted.YES and not entry.excused:
            yield "lost", "accepted, and not there"
    elif not found.record.state.terminal:
        yield (
            "unended",
            f"still {found.record.state} at attempt {found.record.attempt} of {found.record.owner!r}",
        )
    else:
        yield from _end_faults(arena, entry, found.record, found.log)
        yield from _turn_faults(arena, entry, sight)
        yield from _cancel_faults(arena, entry, sight)
    if sight.changed and not (entry.shaken or entry.excused):
        yield "changed", f"a terminal state changed from {sight.changed}"
    yield from _caller_faults(arena, entry, found.state)


def _end_faults(
    arena: Arena, entry: Entry, record: JobRecord, log: tuple[LogEntry, ...]
) -> Iterator[tuple[str, str]]:
    finished_s = (record.finished_ms or 0) / 1000
    roomy = not arena.ledger.struck("memory full", finished_s - 0.5, finished_s + 0.5)
    lossy = entry.shaken or entry.excused
    if fault := marks.log_fault(log, ended=roomy and not lossy, lossy=lossy):
        yield "log", fault
        return
    result = _result(record, log)
    if fault := marks.ended_fault(Ended.of(result), entry):
        yield "result", fault
        return
    if record.result is not None and result.attempts != record.attempt:
        yield "result", f"is of attempt {result.attempts}, and attempt {record.attempt} had begun"
    texts = marks.log_texts(log, len(entry.order.texts))
    whole = log and log[-1].kind == "e"
    for choice in result.choices:
        told = told_of(choice.text, choice.tool_calls)
        if fault := marks.text_fault(texts[choice.index], told, whole=bool(whole)):
            yield "log", f"its text is not the result's, {fault}"


def _result(record: JobRecord, log: tuple[LogEntry, ...]) -> Result:
    if record.result is not None:
        return decode(Result, record.result, MAX_RESULT_BYTES)
    return partial_result(record, log)


def _caller_faults(arena: Arena, entry: Entry, state: State | None) -> Iterator[tuple[str, str]]:
    for reading in entry.readings:
        if fault := marks.reading_fault(reading, entry, state):
            yield "stream", f"reader {reading.kind!r} {fault}"
    for ended in entry.told:
        if fault := marks.ended_fault(ended, entry):
            yield "told", fault
        elif state is not None and ended.state is not state and not entry.shaken:
            yield "told", f"{ended.state}, and the job is {state}"
    if entry.waiting:
        yield "wait", f"{entry.waiting} waits never ended"
    if entry.wait_error and not entry.excused:
        yield "wait", entry.wait_error


def _turn_faults(arena: Arena, entry: Entry, sight: Sight) -> Iterator[tuple[str, str]]:
    """A worker that lives and was not hurt keeps its jobs."""
    for (attempt, turn), (_, following) in pairwise(sorted(sight.turns.items())):
        if entry.excused or entry.shaken or _was_hurt(arena, turn, following.first_s):
            continue
        what = f"attempt {attempt} was taken from {turn.owner}, which lived, by {following.owner}"
        yield "taken", f"{what}; {_strikes(arena, turn, following.first_s)}"


def _was_hurt(arena: Arena, turn: Turn, until_s: float) -> bool:
    member = arena.crew.member(turn.owner)
    if member is None:
        return False
    hurt = any(turn.first_s - HARM_LASTS_S <= harm.at_s <= until_s for harm in member.harms)
    regrouped = arena.ledger.struck("XGROUP DESTROY", turn.first_s - RENEW_S, until_s)
    late = any(turn.first_s <= at_s <= until_s and late_s > LATE_S for at_s, late_s in arena.watcher.late)
    return hurt or regrouped or late


def _strikes(arena: Arena, turn: Turn, until_s: float) -> str:
    """What was done while an attempt lasted, in seconds before its end."""
    lasted = [
        f"{strike.name} {strike.began_s - until_s:+.2f} to {(strike.ended_s or until_s) - until_s:+.2f} s"
        for strike in arena.ledger.strikes
        if strike.lasted(turn.first_s - LEASE_S, until_s)
    ]
    return f"last seen {turn.last_s - until_s:+.2f} s; {', '.join(lasted) or 'nothing was done'}"


def _cancel_faults(arena: Arena, entry: Entry, sight: Sight) -> Iterator[tuple[str, str]]:
    latency_s = cancel_latency_s(entry, sight)
    if latency_s is None or entry.cancel_requested_s is None or latency_s <= RENEW_S + CANCEL_SLACK_S:
        return
    since_s = entry.cancel_requested_s - HARM_LASTS_S
    if not any(
        strike.lasted(since_s, sight.ended_s) and not strike.name.startswith(NO_DELAY)
        for strike in arena.ledger.strikes
    ):
        yield "cancel", f"took {latency_s:.2f} s, and nothing kept it up"


def cancel_latency_s(entry: Entry, sight: Sight) -> float | None:
    """From the request to the end of a running job; None where it was not running."""
    if entry.cancel_requested_s is None or sight.finished_s is None:
        return None
    return max(0.0, sight.finished_s - entry.cancel_requested_s)


def takeovers_s(arena: Arena) -> list[float]:
    """From a worker's SIGKILL to the next attempt at each job that it had, as the watcher saw it."""
    found = []
    for sight in arena.watcher.sights.values():
        for (_, turn), (_, following) in pairwise(sorted(sight.turns.items())):
            member = arena.crew.member(turn.owner)
            deaths = [harm.at_s for harm in member.harms if harm.what == "killed"] if member else []
            found += [
                following.first_s - at_s for at_s in deaths if turn.first_s <= at_s <= following.first_s
            ]
    return found


async def _letter_faults(arena: Arena) -> AsyncIterator[str]:
    """Dead letters that are no poison, and poison that killed and is no dead letter."""
    buried = set()
    for shard in arena.shards:
        for _, letter in await arena.admin.xrange(shard.dead):
            job_id = letter.get(b"id", b"").decode()
            buried.add(job_id)
            entry = arena.ledger.entries.get(job_id)
            if entry is None or not entry.order.fails:
                yield f"{job_id or 'garbage'}: {letter[b'reason'].decode()}"
    for entry in arena.ledger:
        if "engine_died" in entry.order.fails and entry.told and entry.id not in buried and not entry.excused:
            yield f"{entry.id} killed its engines, and there is no letter"
