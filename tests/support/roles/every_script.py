"""Every script of the protocol, sent as the role that it belongs to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millstream.gateway.files.store.file_catalogue import FileCatalogue
from millstream.gateway.redis.gateway_calls import GATEWAY
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.wire import calls
from millstream.wire.calls import Claim, ScriptCall
from millstream.wire.calls.attempt import Keep
from millstream.wire.calls.scripts import script_paths
from millstream.wire.connection import Endpoint
from millstream.wire.keys import Lane, QueueKeys
from millstream.wire.state.dead_letter import list_dead
from millstream.wire.state.heartbeat import Heartbeat, beat
from millstream.wire.state.queue_info import open_queue, record_worker, serve_model
from millstream.wire.versions import TAKEN
from support.roles.signing_in import refusals
from support.servers.secured import SecuredServer
from support.wire.desk import TTL_MS, Desk
from support.wire.gateway_desk import every_batch, every_post
from support.workers.work import SHARD, Work

PRODUCERS = {"open_queue", "submit", "cancel", "expire_one", "forget"}
OPERATORS = {"list_dead"}
BATCHES = {
    "create_batch",
    "take_batch",
    "renew_batch",
    "commit_part",
    "restore_part",
    "move_batch",
    "cancel_batch",
}
POSTS = {"charge", "uncharge", "open_request", "close_request", "gateway_alive", "claim_once"}
FILES = {"add_file", "remove_file", "register_store", "claim_sweep"}
GATEWAYS = BATCHES | POSTS | FILES


class RolesDesk(Desk):
    """Sends each script as the role that it belongs to."""

    def __init__(self, producer: Any, worker: Any, operator: Any, gateway: Any) -> None:
        super().__init__(worker, SHARD)
        self.senders = dict.fromkeys(PRODUCERS, producer) | dict.fromkeys(OPERATORS, operator)
        self.senders |= dict.fromkeys(GATEWAYS, gateway)
        self.sent: set[str] = set()

    async def run(self, call: ScriptCall[Any]) -> Any:
        self.sent.add(call.script.name)
        return await calls.run(self.senders.get(call.script.name, self.redis), call)


async def every_script_runs(secured: SecuredServer, work: Work, folder: Path) -> None:
    """Also those that programs seldom need. A new script has to be given to a role, and tried here."""
    async with (
        Endpoint.of(secured.login("producer")).commands("producer") as producer,
        Endpoint.of(secured.login("worker")).commands("worker") as worker,
        Endpoint.of(secured.login("operator")).commands("operator") as operator,
        Endpoint.of(secured.login("gateway")).commands("gateway") as gateway,
    ):
        desk = RolesDesk(producer, worker, operator, gateway)
        await open_queue(worker, "default")
        await desk.run(record_worker(QueueKeys("default"), TAKEN))
        await desk.run(serve_model(SHARD, "0123"))
        await desk.run(calls.join(SHARD, owner="A"))
        await desk.run(beat(SHARD, Heartbeat("A", model="m"), ttl_ms=TTL_MS))
        await every_end(desk)
        await every_post(desk)
        await every_batch(desk, gateway)
        await desk.run(calls.drop_consumer(SHARD, lane="batch", consumer="A"))
        await desk.sweep_stale()
        access = GatewayRedis(secured.login("gateway"))
        assert await FileCatalogue(access).which_exist([("acme", "file-1")]) == set()
        await access.aclose()
    assert desk.sent | {"open_queue"} == scripts()
    assert refusals(secured) == []


async def every_end(desk: Desk) -> None:
    """Jobs by all ways to an end."""
    held = await desk.begin("0-finish", deadline_ms=2**50)
    assert await desk.submit("0-finish", deadline_ms=2**50)  # again
    await desk.append(held, 1)
    await desk.run(desk.renewing((held.job_id, held.entry_id)))
    await desk.run(desk.releasing(held))
    again = await desk.take_over(Claim(held.job_id, held.entry_id, "released", held.attempt))
    await desk.run(desk.isolating(again))
    await desk.finish(again, 2, delta=b"d")
    for digest in ("kept", "again"):  # with room for one
        await desk.finish(await desk.begin(f"0-{digest}"), keep=Keep(digest, 300))
    assert (await desk.run(calls.forget(SHARD, job_id="0-again"))).deleted
    assert not await desk.redis.exists(SHARD.cached("kept"), SHARD.cached("again"))
    parked = await desk.begin("0-retry")
    await desk.run(desk.retrying(parked))
    assert await desk.promote() == ("0-retry",)
    entry = await desk.deliver()
    await desk.run(desk.giving_back(entry, job_id="0-retry"))
    await desk.run(desk.burying(await desk.begin("0-bury")))
    await desk.cancel((await desk.begin("0-cancelled")).job_id)
    await desk.begin("0-late", deadline_ms=1)
    await desk.expire()
    await desk.begin("0-lazy", deadline_ms=1)
    assert await desk.run(calls.expire_one(desk.keys, job_id="0-lazy", ttl_ms=TTL_MS))
    await desk.submit("0-lost")
    await desk.run(calls.look(SHARD, job_id="0-lost", attempt=0, seq=0, result=b"r", ttl_ms=TTL_MS))
    await desk.redis.xdel(SHARD.lane(desk.lane), (await desk.redis.xrange(SHARD.lane(desk.lane)))[-1][0])
    assert await desk.run(calls.look(SHARD, job_id="0-lost", attempt=0, seq=0, result=b"r", ttl_ms=TTL_MS))
    await desk.submit("0-queued")
    await desk.cancel("0-queued")
    assert (await desk.run(calls.forget(SHARD, job_id="0-queued"))).deleted
    await desk.fill_window()
    for job_id in ("0-served", "0-promoted", "0-cancelled-parked", "0-expired-parked", "0-lazy-parked"):
        await desk.park(job_id, tenant=job_id, deadline_ms=1 if "-parked" in job_id else None)
    await desk.cancel("0-cancelled-parked")
    assert await desk.run(calls.expire_one(desk.keys, job_id="0-lazy-parked", ttl_ms=TTL_MS))
    await desk.expire()
    for _ in range(4):
        assert await desk.take(40)
        await desk.promote()
    assert await desk.parked() == []
    [letter] = await desk.run(list_dead(SHARD, shard=0, before=None, count=9, most_bytes=0))
    assert letter.job_id == "0-bury"
    desk.lane = Lane.INTERACTIVE
    await desk.redis.xadd(SHARD.lane(desk.lane), {"what": "is this"})
    await desk.run(
        calls.discard(
            SHARD, lane=desk.lane, owner="A", entry_id=await desk.deliver(), reason="garbage", max_dead=9
        )
    )


def scripts() -> set[str]:
    return {*script_paths(), *script_paths(GATEWAY)}
