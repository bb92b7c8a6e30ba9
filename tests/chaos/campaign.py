"""One scenario from its first job to its verdict: faults strike one after the other while the load runs, then
all is left in peace until every job has ended, then it is judged.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from redis.exceptions import RedisError
from support.workers.word_engine import tallied

from chaos import checks
from chaos.arena import Arena
from chaos.checks import Violation
from chaos.faults import Fault
from chaos.ledger import Accepted
from chaos.mutants import Mutant
from chaos.scenarios import Scenario
from chaos.watcher import Sight

STRIKE_S = 90.0  # longest fault
SETTLE_S = 60.0  # for all jobs to end once nothing is done to them any more
READERS_S = 30.0  # for readers to hear of an end: one that polls a waiting job asks every 19 s


@dataclass(frozen=True, slots=True)
class Quota:
    """The scenario goes on until both are reached, or its time is over."""

    jobs: int
    faults: int
    limit_s: float
    settle_s: float = SETTLE_S


@dataclass(slots=True)
class Outcome:
    """What one scenario came to."""

    scenario: str
    server: str
    seed: str
    quota: Quota
    seconds: float = 0.0
    ordered: int = 0
    jobs: int = 0  # known to be accepted, or found
    injected: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)  # faults that could not be brought about, and why
    states: Counter[str] = field(default_factory=Counter)
    excused: int = 0  # of the jobs: forgotten with their server, or possibly
    attempts: Counter[int] = field(default_factory=Counter)
    streams: Counter[str] = field(default_factory=Counter)  # complete, left, broken, excused
    recovery_s: list[float] = field(default_factory=list)
    takeover_s: list[float] = field(default_factory=list)  # from a worker's death to its jobs' next attempt
    cancel_s: list[float] = field(default_factory=list)
    formatted: int = 0  # of the jobs: with a grammar
    with_images: int = 0  # of the jobs
    cached: int = 0  # of the jobs: with the tokens of an equal one
    door: Counter[str] = field(default_factory=Counter)  # what went through gateways
    tokens: Counter[str] = field(default_factory=Counter)  # what engines did, `word_engine.TALLY`
    violations: list[Violation] = field(default_factory=list)
    logs: str = ""  # the last lines of the workers, where there are violations

    @property
    def reached(self) -> bool:
        return self.ordered >= self.quota.jobs and self.injected.total() >= self.quota.faults


async def run(
    scenario: Scenario, server: str, seed: str, quota: Quota, mutant: Mutant | None = None
) -> Outcome:
    outcome = Outcome(scenario.name, server, seed, quota)
    began = time.monotonic()
    arena = Arena(scenario, server, f"{seed}/{scenario.name}/{server}", mutant)
    async with asyncio.timeout(quota.limit_s + SETTLE_S + READERS_S + 2 * STRIKE_S), arena:
        await _storm(arena, scenario, quota)
        await _settle(arena, outcome)
        await _close(arena, outcome)
        outcome.violations += await checks.judge(arena)
        outcome.violations += await checks.nothing_left(arena)
        outcome.violations += checks.damages(arena)
        _sum_up(arena, outcome)
    outcome.seconds = time.monotonic() - began
    return outcome


# --- the storm


async def _storm(arena: Arena, scenario: Scenario, quota: Quota) -> None:
    """Faults and jobs, until there were enough of both."""
    await arena.somebody(0.0, wait_s=STRIKE_S)
    until = time.monotonic() + quota.limit_s
    lanes = scenario.lanes
    async with asyncio.TaskGroup() as group:
        for faults, count in zip(lanes, _shares(quota.faults, lanes), strict=True):
            group.create_task(_strike_on(arena, faults, count, scenario.pause_s, until))
    while len(arena.ledger) < quota.jobs and time.monotonic() < until:  # noqa: ASYNC110 - the load sets no event
        await asyncio.sleep(0.05)
    arena.load.stop()


async def _strike_on(
    arena: Arena, faults: Mapping[Fault, int], count: int, pause_s: float, until: float
) -> None:
    chosen = _deal(arena.random, faults, count)
    pauses = [arena.random.expovariate(1 / pause_s) for _ in chosen]
    for fault, pause in zip(chosen, pauses, strict=True):
        await asyncio.sleep(min(pause, 4 * pause_s))
        if time.monotonic() > until:
            return
        await _strike(arena, fault)


def _shares(count: int, lanes: Sequence[Mapping[Fault, int]]) -> list[int]:
    """Of so many faults each lane's, by what its own weigh together."""
    weights = [sum(faults.values()) for faults in lanes]
    return [-(-count * weight // sum(weights)) for weight in weights]


def _deal(source: random.Random, faults: Mapping[Fault, int], count: int) -> list[Fault]:
    """From a shuffled deck that has each fault as often as it weighs, again and again."""
    dealt: list[Fault] = []
    while len(dealt) < count:
        deck = [fault for fault, weight in faults.items() for _ in range(weight)]
        source.shuffle(deck)
        dealt += deck
    return dealt[:count]


async def _strike(arena: Arena, fault: Fault) -> None:
    strike = arena.ledger.began(fault.name)
    try:
        async with asyncio.timeout(STRIKE_S):
            await fault.strike(arena)
    except (RedisError, OSError, RuntimeError, TimeoutError) as error:
        strike.error = f"{fault.name}: {error!r}"
    strike.ended_s = time.time()


# --- peace


async def _settle(arena: Arena, outcome: Outcome) -> None:
    """Every job ends, and every customer has what it waited for. Who has not is a violation, found later."""
    arena.crew.ensure()
    until = time.monotonic() + outcome.quota.settle_s
    while time.monotonic() < until:
        if await _all_ended(arena):
            break
        await asyncio.sleep(0.05)
    await arena.load.over(min(READERS_S, outcome.quota.settle_s))
    for member in arena.crew.members:
        if not member.alive and not member.dismissed and not member.harms:
            status = member.process.returncode
            outcome.violations.append(Violation("worker", f"{member.name} ended by itself with {status}"))


async def _all_ended(arena: Arena) -> bool:
    try:
        await arena.watcher.look()
    except (RedisError, OSError):
        return False
    sights = arena.watcher.sights
    return not any(
        entry.accepted is Accepted.YES or bool(sights.get(entry.id, Sight()).turns)
        for entry in arena.watcher.open
    )


async def _close(arena: Arena, outcome: Outcome) -> None:
    """Clients go, workers are drained."""
    await arena.load.aclose()
    if arena.gateways is not None:
        await arena.gateways.drain()
        outcome.door = arena.gateways.tally
    if not await _all_ended(arena):  # their workers would wait for them in vain
        arena.crew.end()
    for name, status in (await arena.crew.drain()).items():
        if status != 0:
            outcome.violations.append(Violation("worker", f"{name} ended with {status} after SIGTERM"))


def _sum_up(arena: Arena, outcome: Outcome) -> None:
    for strike in arena.ledger.strikes:
        if strike.error:
            outcome.missed.append(strike.error)
            continue
        outcome.injected[strike.name] += 1
        if strike.recovery_s is not None:
            outcome.recovery_s.append(strike.recovery_s)
    if outcome.violations:
        outcome.logs = arena.crew.tail()
    outcome.ordered = len(arena.ledger)
    outcome.tokens = tallied(arena.folder)
    outcome.takeover_s = checks.takeovers_s(arena)
    broken = {(v.job_id) for v in outcome.violations if v.kind == "stream"}
    for entry in arena.ledger:
        sight = arena.watcher.sights.get(entry.id, Sight())
        if entry.accepted is Accepted.YES or sight.state is not None:
            outcome.jobs += 1
            outcome.excused += entry.excused
            outcome.formatted += "response_format" in entry.order.fields
            outcome.with_images += entry.order.has_images
            outcome.cached += any(ended.cached for ended in entry.told)
            outcome.states[sight.state or "gone"] += 1
            outcome.attempts[max(sight.turns, default=0)] += 1
        if (latency_s := checks.cancel_latency_s(entry, sight)) is not None:
            outcome.cancel_s.append(latency_s)
        for reading in entry.readings:
            kind = "left" if reading.left else "complete" if reading.state else "excused"
            outcome.streams["broken" if entry.id in broken else kind] += 1
