"""Is the failure suite able to fail? Each mutant runs in a scenario that its missing safety is there for, and
the suite must report violations of the kinds that are to be expected. A mutant that shows none means that the
suite is blind there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from chaos import campaign
from chaos.campaign import Outcome, Quota
from chaos.faults import aimed, gateway, models, poison, process, server
from chaos.mutants import MUTANTS, Mutant
from chaos.scenarios import CACHING, POISONED, Scenario

SETTLE_S = 2.0  # what has not ended by then will not


@dataclass(frozen=True, slots=True)
class Trial:
    """`shows`: kinds of violations, one of which must be found."""

    mutant: Mutant
    scenario: Scenario
    quota: Quota
    shows: frozenset[str]

    async def run(self, server: str, seed: str) -> Outcome:
        """Raises Stale where the mutant does not fit the product any more."""
        with self.mutant.applied():
            pass
        return await campaign.run(self.scenario, server, seed, self.quota, self.mutant)

    def is_seen(self, outcome: Outcome) -> bool:
        return any(violation.kind in self.shows for violation in outcome.violations)


SLOW = {"step_s": 0.03}  # a job takes up to a second
CALM = Scenario("calm", (), crew=2, rate=20.0, engine=SLOW)
LONG = Scenario("long", (), crew=2, rate=8.0, engine={"step_s": 0.1})  # of more than a lease
ALONE = Scenario("alone", (), crew=1, rate=30.0)
WOKEN = Scenario("woken", ({aimed.wake_usurped: 1},), crew=2, rate=20.0, engine=SLOW)
# Whoever has no room takes nothing over: much room, few jobs.
ROOMY = SLOW | {"rows": 64}
CLOCK = Scenario("clock", ({aimed.jump_after_renewal: 1},), crew=2, rate=10.0, engine=ROOMY, pause_s=0.1)
FULL = Scenario("full", ({aimed.fill_under_load: 1},), crew=1, rate=30.0, engine=SLOW)
KILLING = POISONED | {"engine": SLOW | poison.ENGINE}
DEADLY = Scenario("deadly", ({poison.engine_killed: 1},), crew=1, rate=20.0, **KILLING)
UNREAD = Scenario("unread", ({poison.unreadable: 1},), crew=1, rate=20.0)
ASKED = Scenario("asked", ({aimed.look_at_waiting: 1},), crew=1, rate=10.0, engine=SLOW)
UNSURE = Scenario("unsure", ({aimed.submit_again: 1},), crew=1, rate=30.0)
DEAF = Scenario("deaf", ({server.cut_pubsub: 1},), crew=1, rate=30.0, engine=SLOW, pause_s=0.2)
REPLACED = Scenario("replaced", ({models.replace_model: 1},), crew=2, rate=20.0, engine=SLOW)
DENSE = {"step_s": 0.06, "rows": 32}
DOOR: dict[str, Any] = {"crew": 2, "customers": 0, "gateways": 2, "engine": {"step_s": 0.05}, "pause_s": 1.0}
STOPPED = Scenario("stopped", ({gateway.replace_gateway: 1},), **DOOR)
UNREACHED = Scenario("unreached", ({server.kill_server: 1},), **DOOR)
CLAIMING = Scenario("claiming", ({gateway.kill_claiming_gateway: 1},), **DOOR)
UNHEARD = Scenario("unheard", ({server.cut_pubsub: 1},), **DOOR | {"pause_s": 0.3})
# An object of which no server hears, or a part of one, needs a moment of luck: many blows.
ORPHANED = Scenario(
    "orphaned", ({gateway.kill_gateway: 1}, {server.kill_server: 1}), **DOOR | {"pause_s": 0.3}
)
KILLED = Scenario("killed", ({gateway.kill_gateway: 1},), **DOOR)
RESUMED = Scenario("resumed", ({aimed.kill_engine_in_grammars: 1},), crew=1, rate=60.0, engine=DENSE)

# Images in every job, small as they are.
SHOWING = Scenario("showing", (), crew=1, rate=20.0, images=1.0)
REPEATING = Scenario("repeating", (), crew=1, rate=20.0, images=1.0, settings=CACHING)
DYING = Scenario("dying", ({process.kill_engine: 1},), crew=1, rate=20.0, images=1.0, engine=SLOW)

TAKEN_OVER = Scenario("taken over", ({process.kill_worker: 1},), crew=2, rate=40.0, engine=DENSE)


def _trial(
    name: str, scenario: Scenario, jobs: int, faults: int, *shows: str, settle_s: float = SETTLE_S
) -> Trial:
    return Trial(MUTANTS[name], scenario, Quota(jobs, faults, 20.0, settle_s), frozenset(shows))


def _door_trial(name: str, scenario: Scenario, faults: int, *shows: str) -> Trial:
    """No jobs but those of gateways."""
    return _trial(name, scenario, 0, faults, *shows, settle_s=20.0)


TRIALS = (
    _trial("no fence", WOKEN, 30, 1, "log", "result"),
    _trial("no marker", ALONE, 10, 0, "log"),
    _trial("one log for two models", REPLACED, 40, 5, "log"),
    _trial("one sighting", CLOCK, 30, 4, "taken"),
    _trial("no idle time", CALM, 40, 0, "taken"),
    _trial("end after entry", FULL, 40, 1, "unended", "stream"),
    _trial("entry before fence", WOKEN, 100, 6, "unended"),
    _trial("no log repair", DEAF, 40, 8, "stream"),
    _trial("no renewal", LONG, 16, 0, "taken", settle_s=15.0),
    _trial("blame in company", DEADLY, 40, 1, "dead letter"),
    _trial("no net", UNREAD, 10, 1, "worker", settle_s=15.0),
    _trial("look in the lane alone", ASKED, 10, 1, "result", "stream", settle_s=15.0),
    _trial("no idempotency", UNSURE, 40, 3, "changed"),
    # Without its grammar a job goes on to its length: 64 tokens of 60 ms.
    _trial("no grammar after a resume", RESUMED, 100, 1, "result", settle_s=10.0),
    _trial("calls told twice", TAKEN_OVER, 150, 5, "log"),
    _trial("drafts unverified", ALONE, 40, 0, "result", "engine"),
    _trial("no grammar in drafts", ALONE, 100, 0, "result"),
    _trial("no digest of images", SHOWING, 100, 0, "result", "engine"),
    _trial("features of another place", SHOWING, 20, 0, "result", "engine"),
    _trial("engine without images", DYING, 60, 2, "result", settle_s=15.0),
    _trial("equal texts", REPEATING, 300, 0, "result"),
    _trial("refused in silence", ALONE, 200, 0, "unended"),
    _trial("cut is whole", ALONE, 40, 0, "result"),
    _door_trial("no log repair in gateways", UNHEARD, 20, "answer"),
    _door_trial("part is a file", KILLED, 3, "file"),
    _door_trial("file unconfirmed", UNREACHED, 4, "file"),
    _door_trial("key of an upload unread", KILLED, 3, "file"),
    _door_trial("no sweep", ORPHANED, 14, "orphan"),
    _door_trial("key unread", KILLED, 2, "answer"),
    _door_trial("an end for every stream", STOPPED, 4, "answer"),
    _door_trial("joined without a job", CLAIMING, 4, "answer"),
)
BY_NAME = {trial.mutant.name: trial for trial in TRIALS}


async def run_all(trials: Iterable[Trial], server: str, seed: str) -> list[tuple[Trial, Outcome]]:
    return [(trial, await trial.run(server, seed)) for trial in trials]


def text(results: Sequence[tuple[Trial, Outcome]]) -> str:
    """What was found of each mutant."""
    width = max(len(trial.mutant.name) for trial, _ in results)
    lines = [f"{'mutant':<{width}}  {'jobs':>5} {'faults':>6} {'s':>4}  violations"]
    for trial, outcome in results:
        kinds = Counter(violation.kind for violation in outcome.violations)
        found = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()) or "none"
        blind = "" if trial.is_seen(outcome) else f"  NOT SEEN: must show {' or '.join(sorted(trial.shows))}"
        lines.append(
            f"{trial.mutant.name:<{width}}  {outcome.jobs:>5} {outcome.injected.total():>6} "
            f"{outcome.seconds:>4.0f}  {found}{blind}"
        )
    return "\n".join(lines)
