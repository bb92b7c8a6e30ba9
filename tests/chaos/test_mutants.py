"""The failure suite fails where it has to: a product without one of its safeties shows violations, the whole
one under the same blows shows none.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from chaos import campaign, trials
from chaos.edits import CodeEdit, LuaEdit, Stale
from chaos.mutants import MUTANTS, Mutant
from millstream.client.streaming.reader import StreamReader
from millstream.wire.calls import scripts

QUICK = ("no fence", "no marker", "drafts unverified")  # the others: make chaos


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "millstream")


@pytest.mark.timeout(300)
@pytest.mark.slow
async def test_a_missing_safety_is_seen() -> None:
    """A fault strikes where it may, on a busy machine not in time: what is broken need not show at once."""
    tried = [trials.BY_NAME[name] for name in QUICK]
    assert not any(trial.mutant.clients for trial in tried), "they run side by side in this process"
    for attempt in range(5):
        outcomes = await asyncio.gather(*(trial.run("valkey", f"short{attempt}") for trial in tried))
        results = list(zip(tried, outcomes, strict=True))
        tried = [trial for trial, outcome in results if outcome.missed or not trial.is_seen(outcome)]
        if not tried:
            return
    raise AssertionError(trials.text(results))


@pytest.mark.slow
async def test_the_whole_product_shows_nothing_where_a_mutant_does() -> None:
    trial = trials.BY_NAME["no fence"]
    outcome = await campaign.run(trial.scenario, "valkey", "short", trial.quota)
    assert not outcome.missed
    assert not outcome.violations, outcome.logs


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_applies_to_the_product_as_it_is(mutant: Mutant) -> None:
    before = _product(mutant)
    with mutant.applied():
        during = _product(mutant)
        assert all(now != then for now, then in zip(during, before, strict=True))
    assert _product(mutant) == before
    with mutant.in_clients():
        assert (_product(mutant) != before) is mutant.clients
    assert trials.BY_NAME[mutant.name].shows


def _product(mutant: Mutant) -> list[Any]:
    """What runs, of all that the mutant edits."""
    return [
        edit.script.source if isinstance(edit, LuaEdit) else edit.find().__code__ for edit in mutant.edits
    ]


@pytest.mark.parametrize(
    "edit",
    [
        LuaEdit("finish.lua", "no such text", ""),
        LuaEdit("parts/job.lua", "job", ""),
        CodeEdit("millstream.client.streaming.reader:StreamReader.lost", "no such text", ""),
    ],
)
def test_a_mutant_whose_text_is_gone_says_so(edit: LuaEdit | CodeEdit) -> None:
    finish, lost = scripts.script("finish"), StreamReader.lost.__code__
    with pytest.raises(Stale, match="times, not once"), edit.applied():
        pass
    assert (scripts.script("finish"), StreamReader.lost.__code__) == (finish, lost)
