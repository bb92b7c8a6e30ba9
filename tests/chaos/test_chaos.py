"""The failure suite's short form: every kind of blow to one server and its workers, once, in some seconds."""

from __future__ import annotations

import logging

import pytest
from support.servers.servers import KINDS, binary

from chaos import campaign, report, scenarios
from chaos.campaign import Quota

pytestmark = pytest.mark.slow

# One of them with images, whose processes take seconds to start.
RUNS = {"valkey": (scenarios.PAGES, Quota(200, 12, 45.0)), "redis": (scenarios.SHORT, Quota(200, 9, 45.0))}


@pytest.mark.xdist_group("chaos")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_is_lost_repeated_or_left_silent(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    if binary(kind) is None:
        pytest.skip(f"{kind}-server is not on the PATH")
    caplog.set_level(logging.ERROR, "millstream")
    scenario, quota = RUNS[kind]
    outcome = await campaign.run(scenario, kind, "short", quota)
    table = report.text([outcome], f"{kind}: python -m chaos --scenario {scenario.name} --seed short")
    assert not outcome.violations, f"{table}\n\n{outcome.logs}"
    assert outcome.reached, table
    assert outcome.states["completed"] > 100, table
    assert outcome.streams["complete"] > 30, table
    assert outcome.streams["broken"] == 0, table
    assert outcome.formatted > 30, table
    assert outcome.with_images > (40 if scenario.images else -1), table
    assert 0 < outcome.tokens["accepted_total"] < outcome.tokens["drafted_total"], table
    assert outcome.tokens["forced_total"] > 0, table
    assert outcome.cached > 0, table
