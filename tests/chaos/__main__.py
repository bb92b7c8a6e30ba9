"""python -m chaos: run scenarios, print the table, exit with 1 where anything was violated."""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shlex
import sys
import traceback
from collections.abc import Sequence
from math import ceil
from pathlib import Path

from support.servers.servers import KINDS, binary

from chaos import campaign, report, scenarios, trials
from chaos.campaign import Outcome, Quota
from chaos.checks import Violation
from chaos.scenarios import Scenario

LONG_RUN = {"jobs": 11_000, "faults": 340, "minutes": 8.0}
AROUND_S = 12.0  # of every scenario: start, settling, readers, drain


def main(arguments: Sequence[str] | None = None) -> int:
    logging.getLogger("millstream").setLevel(logging.ERROR)  # lost connections are what this is about
    chosen = _parser().parse_args(arguments)
    if chosen.mutants:
        return _try_mutants(chosen)
    rounds = _rounds(chosen)
    outcomes = asyncio.run(_run(chosen, rounds))
    command = "python -m chaos " + shlex.join(_arguments(chosen))
    print(report.text(outcomes, command))
    if chosen.logs and any(outcome.logs for outcome in outcomes):
        Path(chosen.logs).write_text("\n\n".join(outcome.logs for outcome in outcomes), encoding="utf-8")
    return 1 if any(outcome.violations for outcome in outcomes) else 0


def _try_mutants(chosen: argparse.Namespace) -> int:
    """Whether the suite sees what each safety is for."""
    server = (chosen.server or KINDS)[0]
    results = asyncio.run(trials.run_all(trials.TRIALS, server, chosen.seed))
    print(trials.text(results))
    return 0 if all(trial.is_seen(outcome) for trial, outcome in results) else 1


async def _run(chosen: argparse.Namespace, rounds: Sequence[tuple[Scenario, str, Quota]]) -> list[Outcome]:
    outcomes = []
    for scenario, server, quota in rounds:
        try:
            outcome = await campaign.run(scenario, server, chosen.seed, quota)
        except Exception as error:  # noqa: BLE001 - the other scenarios are run all the same
            outcome = Outcome(scenario.name, server, chosen.seed, quota)
            outcome.violations.append(Violation("suite", f"the scenario ended with {error!r}"))
            outcome.logs = traceback.format_exc()
            traceback.print_exc()
        print(
            f"{scenario.name}/{server}: {outcome.jobs} jobs, {outcome.injected.total()} faults, "
            f"{len(outcome.violations)} violations, {outcome.seconds:.0f} s",
            *(f"  {violation}" for violation in outcome.violations[:5]),
            sep="\n",
            file=sys.stderr,
        )
        outcomes.append(outcome)
    return outcomes


def _rounds(chosen: argparse.Namespace) -> list[tuple[Scenario, str, Quota]]:
    """Each scenario on its servers, with its share of jobs, faults and time."""
    names = chosen.scenario or [scenario.name for scenario in scenarios.ALL]
    wanted = [scenarios.BY_NAME[name] for name in names]
    servers = [server for server in (chosen.server or KINDS) if binary(server) is not None]
    pairs = [(scenario, kind) for scenario in wanted for kind in scenario.kinds if kind in servers]
    weights, blows = (sum(getattr(one, name) for one, _ in pairs) for name in ("weight", "blows"))
    left_s = 60 * chosen.minutes - AROUND_S * len(pairs)
    rounds = []
    for scenario, kind in pairs:
        share = scenario.weight / weights
        jobs, faults = ceil(chosen.jobs * share), ceil(chosen.faults * scenario.blows / blows)
        rounds.append((scenario, kind, Quota(jobs, faults, max(10.0, share * left_s))))
    return rounds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**6)))
    parser.add_argument("--jobs", type=int, default=LONG_RUN["jobs"], help="over all scenarios")
    parser.add_argument("--faults", type=int, default=LONG_RUN["faults"], help="over all scenarios")
    parser.add_argument("--minutes", type=float, default=LONG_RUN["minutes"], help="at most, about")
    parser.add_argument("--scenario", action="append", choices=sorted(scenarios.BY_NAME))
    parser.add_argument("--server", action="append", choices=KINDS)
    parser.add_argument(
        "--mutants", action="store_true", help="run the product without one safety at a time instead"
    )
    parser.add_argument("--logs", metavar="FILE", help="where violations were found: the workers' last lines")
    return parser


def _arguments(chosen: argparse.Namespace) -> list[str]:
    """Those that bring about the same run."""
    given = ["--seed", chosen.seed, "--jobs", str(chosen.jobs), "--faults", str(chosen.faults)]
    given += ["--minutes", f"{chosen.minutes:g}"]
    for name in ("scenario", "server"):
        given += [part for value in getattr(chosen, name) or () for part in (f"--{name}", value)]
    return given


if __name__ == "__main__":
    sys.exit(main())
