"""Each role of `ops/deploy/users.acl` can do everything that it is for: nothing is refused while jobs live
every life that a job can have. The server's own log of refusals is asked: a script passes over some in
silence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from support.roles import gateway_flows, role_flows
from support.roles.every_script import every_script_runs
from support.roles.signing_in import refusals
from support.scrapes import queue_exporter, until_shown
from support.servers.monitor import watching
from support.servers.secured import LIMITED, SecuredServer, by_role, listed
from support.wire.desk import TTL_MS, WINDOW, Desk
from support.workers.hand_worker import hand_worker
from support.workers.work import SHARD, Work

from millstream import AsyncClient
from millstream.wire import calls
from millstream.wire.connection import Endpoint
from millstream.wire.state.heartbeat import Heartbeat, beat
from millstream.wire.state.queue_info import PubSub, open_queue

Flow = Callable[[SecuredServer, Work, Path], Awaitable[None]]
FLOWS: dict[str, Flow] = {
    "every script": every_script_runs,
    "jobs over plain channels": partial(role_flows.jobs_live_and_end, pubsub=PubSub.PLAIN),
    "jobs over sharded channels": partial(role_flows.jobs_live_and_end, pubsub=PubSub.SHARDED),
    "an observer": role_flows.an_observer_looks,
    "an operator": role_flows.an_operator_looks_after_dead_letters,
    "a gateway": gateway_flows.a_gateway_answers,
    "a gateway's batches": gateway_flows.a_gateway_runs_batches,
}
LONG: tuple[Flow, ...] = (role_flows.a_worker_takes_over_drains_and_buries, role_flows.submitted_to_disk)
DENIED = ("dead", "tenants")  # to a producer
# What only some ways of connecting send: test_rights.py.
BY_PLACE = {"select", "role", "cluster|slots", "asking"}


@pytest.mark.parametrize("roles_server", ["valkey"], indirect=True)  # the slow test below runs on each kind
@pytest.mark.parametrize(
    "flow",
    [
        pytest.param(flow, id=name, marks=[pytest.mark.slow] * name.startswith("a gateway"))
        for name, flow in FLOWS.items()
    ],
)
async def test_nothing_is_refused(
    flow: Flow, secured: SecuredServer, role_work: Work, tmp_path: Path
) -> None:
    await flow(secured, role_work, tmp_path)


@pytest.mark.parametrize("role", ["producer", "operator", "observer"])
async def test_each_role_sees_of_the_queue_what_it_may(secured: SecuredServer, role: str) -> None:
    """Whose jobs wait is no producer's business, nor how many were given up."""
    async with hand_worker(secured.login("admin")) as worker, AsyncClient(secured.login(role)) as client:
        desk = await Desk(worker.redis, SHARD).open()
        await desk.fill_window()
        await desk.park("0-parked", tenant="acme")
        await desk.run(calls.join(SHARD, owner=worker.name))
        await desk.run(beat(SHARD, Heartbeat(worker.name, model="m", oldest_batch_ms=5), ttl_ms=TTL_MS))
        await desk.take(1, owner=worker.name)
        status = await client.queue_info()
        assert [(lane.waiting, lane.running) for lane in status.lanes] == [(0, 0), (128, 1)]
        assert status.lanes[1].oldest_s is not None
        assert [one.name for one in status.workers or ()] == [worker.name]
        assert (status.held_bytes or 0) > 0
        await worker.redis.delete(SHARD.worker(worker.name))
        unserved = await client.queue_info()
    reason = "needs the operator or observer role"
    if role == "producer":
        assert (status.tenants, status.dead, status.unread) == (None, None, dict.fromkeys(DENIED, reason))
        assert {entry[0] for entry in refusals(secured)} == {"producer"}
    else:
        assert (status.tenants, status.dead, status.unread) == ({"acme": 1}, 0, {})
    assert (unserved.lanes[1].oldest_s is None) == ("oldest_s" in unserved.unread) == (role != "observer")


async def test_an_observer_s_rights_suffice_for_the_exporter(secured: SecuredServer) -> None:
    """With jobs that wait in a lane and beside it, and no worker that could report their age."""
    async with Endpoint.of(secured.login("admin")).commands("admin") as admin:
        desk = await Desk(admin, SHARD).open()
        await desk.fill_window()
        await desk.park("0-parked", tenant="acme")
        await open_queue(admin, "default")
        with queue_exporter(secured.login("observer")) as port:
            waiting = {"jobs_queued{batch,default}": WINDOW + 1, "tenant_jobs_parked{default,acme}": 1}
            none = {"workers{default}": 0, "dead_letters{default}": 0, "jobs_delayed{default}": 0}
            seen = await until_shown(port, waiting | none)
    assert seen["oldest_queued_age_seconds{batch,default}"] > 0
    assert seen["held_bytes{default}"] > 0
    assert refusals(secured) == []


@pytest.mark.slow
async def test_no_role_has_a_right_that_it_does_not_use(
    secured: SecuredServer, role_work: Work, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("millstream.wire.connection.pubsub_connection.PING_AFTER_S", 0.05)  # of silence
    with watching(secured.login("admin")) as watch:
        for number, flow in enumerate((*FLOWS.values(), *LONG)):
            (folder := tmp_path / str(number)).mkdir()
            await flow(secured, role_work, folder)
            secured.flush()
        used: dict[str, set[str]] = {role: set(BY_PLACE) for role in LIMITED}
        for role, commands in by_role(watch).items():
            used.setdefault(role, set()).update(words[0] for words in commands)
            used[role].update("|".join(words) for words in commands)
    for role in ("operator", "gateway"):  # which are producers, too
        used[role] |= used["producer"]
    for role in LIMITED:
        assert listed(secured, role) - used[role] == set(), role
