"""The short form: up to some hundreds of inputs for each reader of what comes from outside."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import pytest
from support.servers.servers import Server

from fuzz.flood import flood
from fuzz.gateway_reply import check_reply
from fuzz.http_exchange import Reply
from fuzz.in_process_gateway import in_process_gateway
from fuzz.target import Refused, Target, case_of, outcome, read, run, written
from fuzz.targets import ALL, BY_NAME

SEED = "short"
INPUTS = 200  # for a target of share 1 or more
ALWAYS_RIGHT = {"streams", "resumed-streams"}  # whatever comes, they have an answer

LONG = {"command-lines", "environments", "shapes-http"}  # start commands, and a loop for each request


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(target, id=target.name, marks=[pytest.mark.slow] * (target.name in LONG))
        for target in ALL
    ],
)
def test_each_input_has_a_result_or_a_clear_error(target: Target) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries, about values that are refused a moment later
        tally = run(target, SEED, max(24, round(INPUTS * min(1.0, target.share))))
    assert not tally.crashes, "\n".join(map(str, tally.violations))
    assert tally.results, "no input comes through: the target is not deep"
    assert tally.errors or target.name in ALWAYS_RIGHT, "no input is refused"


def test_a_printed_input_can_be_fed_again_and_is_the_same_alone() -> None:
    for target in ALL:
        case = case_of(target, SEED, 7)
        assert written(read(written(case))) == written(case) == written(case_of(target, SEED, 7)), target.name
    target = BY_NAME["messages"]
    tally = run(target, SEED, 20, first=100)
    kinds = [outcome(target, case_of(target, SEED, number))[0] for number in range(100, 120)]
    assert (kinds.count("result"), kinds.count("error")) == (tally.results, tally.errors)


def _boom(case: bytes) -> None:
    match len(case):
        case 1:
            raise ValueError("clear")
        case 2:
            raise ValueError
        case 3:
            raise KeyError("boom")


def _spin(_: bytes) -> None:
    while True:
        pass


def test_a_crash_or_a_hang_is_reported_with_its_input() -> None:
    """What is neither a result nor a clear error, or does not end in time, is told."""
    target = Target("boom", lambda chance: bytes(chance.randrange(4)), _boom, (ValueError,))
    tally = run(target, SEED, 200)
    assert tally.results
    assert tally.errors
    assert tally.crashes == sum(len(case_of(target, SEED, number)) > 1 for number in range(200))
    assert {re.split("[: ]", one.what)[0] for one in tally.violations} == {"KeyError", "ValueError"}
    assert {len(read(violation.case)) for violation in tally.violations} == {2, 3}
    hanging = run(Target("spin", target.make, _spin, (ValueError,), hang_s=0.05), SEED, 1)
    assert hanging.violations[0].what.startswith("Hang: ")


def test_an_answer_that_the_gateway_may_not_give_is_told() -> None:
    id = {"x-request-id": "req_1"}
    good = {"error": {"message": "m", "type": "invalid_request_error", "param": None, "code": "c"}}
    with pytest.raises(Refused):
        check_reply(Reply("GET", 400, id, json.dumps(good).encode()))
    port = in_process_gateway().server.port
    for status, headers, told in (
        (400, {}, {}),
        (500, id, {"code": "internal_error"}),
        (503, id, {"code": "unavailable"}),
        (400, id, {"code": None}),
        (400, id, {"param": ["model"]}),
        (400, id, {"message": f"127.0.0.1:{port} refused"}),
    ):
        body = {"error": good["error"] | told}
        with pytest.raises(AssertionError):
            check_reply(Reply("GET", status, headers, json.dumps(body).encode()))


async def test_a_queue_full_of_garbage_is_worked_off(valkey: Server, tmp_path: Path) -> None:
    flooded = await flood(valkey, tmp_path, SEED, 600)
    assert flooded.states["completed"] > 50, flooded
    assert flooded.states["failed"] > 50, flooded
    assert flooded.reasons["log_damaged"] > 2, flooded
    assert flooded.strangers > 20, flooded
