"""A key's limits hold, whatever its clients do, and whatever becomes of the server's clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.limited_gateways import COST, Asked, LimitedGateways, limited_gateways
from support.servers.servers import Server, running
from support.wire.desk import Desk

from millstream.gateway.auth.api_keys import ApiKey
from millstream.gateway.auth.idempotency import IdempotentRequest
from millstream.gateway.auth.rate_limits import Charge, RateLimits
from millstream.gateway.redis.gateway_calls import ChargeReply, Limits, charge, uncharge
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.gateway.redis.tenant_keys import TenantKeys
from millstream.wire.messages.job_messages import State

KEYS = TenantKeys("acme")
HOUR_S = 3600
DAY_MS = 86_400_000

gateways = st.integers(0, 1)
texts = st.sampled_from([f"text {letter}" for letter in "abcdef"])
posts = st.lists(st.builds(Asked, gateways, texts, st.booleans()), min_size=1, max_size=4)
bursts = st.builds(lambda text: [Asked(number % 2, text, once=True) for number in range(4)], texts)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("post"), posts),
        st.tuples(st.just("post"), bursts),
        st.tuples(st.just("post"), bursts),
        st.tuples(st.sampled_from(["leave", "hand over"]), st.integers(0, 9)),
        st.tuples(st.sampled_from(["end", "forget"]), st.none()),
        st.tuples(st.just("pass"), st.sampled_from([1, 10, 20, 61])),
        st.tuples(st.just("set"), st.sampled_from([HOUR_S, -HOUR_S])),
        st.tuples(st.just("set"), st.sampled_from([HOUR_S, 5, -5])),
    ),
    min_size=8,
    max_size=16,
)
THREE = [Asked(number % 2, "") for number in range(3)]
LIMITS = [
    {"requests_per_min": 3},
    {"tokens_per_min": 3 * COST + 1},
    {"requests_per_min": 4, "max_enqueued_tokens": 2 * COST},
]


@pytest.mark.slow
@pytest.mark.parametrize("limits", LIMITS, ids=lambda limits: "+".join(limits))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
@example(steps=[("post", THREE), ("set", HOUR_S), ("post", THREE)])
@example(steps=[("post", THREE), ("set", -HOUR_S), ("set", HOUR_S), ("post", THREE)])
async def test_no_window_has_more_jobs_than_its_limit_and_one(
    servers: dict[str, Server], tmp_path: Path, limits: dict[str, int], steps: list[tuple[str, Any]]
) -> None:
    """POSTs at once, repeated with a key or without, clients that go, jobs that end, results that expire,
    time that passes, and a server's clock that is set (LimitedGateways.set_clock says how). Before it is set,
    each gateway has charged the tenant since it was set last: one that has not cannot know."""
    async with limited_gateways(running("valkey", servers), tmp_path, **limits) as world:
        for kind, what in steps:
            await act(world, kind, what)
            await world.note()
            world.check(limits.get("requests_per_min", 3.1))
            assert world.tokens_under_way <= limits.get("max_enqueued_tokens", 10**9)


async def act(world: LimitedGateways, kind: str, what: Any) -> None:
    waiting = [post for post in world.posts if not post.status and not post.left.is_set()]
    match kind:
        case "post":
            fresh = (f"{len(world.posts) + number:>6}" for number in range(9))
            await world.post(*(one if one.once else replace(one, text=next(fresh)) for one in what))
        case "leave" if waiting:
            await world.leave(waiting[what % len(waiting)])
        case "hand over" if waiting:
            await world.hand_over(waiting[what % len(waiting)], what % 2)
        case "end":
            await world.end_one()
        case "forget":
            await world.forget_results()
        case "pass":
            await world.pass_time(what)
        case "set":
            await world.look()
            await world.set_clock(what)


async def statuses(world: LimitedGateways, *asked: Asked) -> list[int]:
    """0: it waits for its job."""
    return sorted([post.status for post in await world.post(*asked)])


async def test_posts_that_join_a_refused_one_are_charged(valkey: Server, tmp_path: Path) -> None:
    async with limited_gateways(valkey, tmp_path, requests_per_min=2) as world:
        assert await statuses(world, Asked(0, "text 1"), Asked(1, "text 2")) == [0, 0]
        for text in ("text a", "text b", "text c"):
            posts = [Asked(number % 2, text, once=True) for number in range(4)]
            assert await statuses(world, *posts) == [429] * 4
        await world.note()
        assert len(world.queued) == 2


async def test_a_repetition_whose_job_exists_is_not_charged(valkey: Server, tmp_path: Path) -> None:
    async with limited_gateways(valkey, tmp_path, requests_per_min=2) as world:
        for gateway in (0, 1, 0, 1):
            assert await statuses(world, Asked(gateway, "text a", once=True)) == [0]
        assert await statuses(world, Asked(0, "text b", once=True)) == [0]
        assert await statuses(world, Asked(0, "text c", once=True)) == [429]


async def test_a_job_without_its_client_is_under_way_till_its_end(valkey: Server, tmp_path: Path) -> None:
    async with limited_gateways(valkey, tmp_path, max_enqueued_tokens=2 * COST) as world:
        for text, status in (("text a", 0), ("text b", 0), ("text c", 429)):
            [post] = await world.post(Asked(0, text, once=True))
            assert post.status == status
            await world.leave(post)
        await world.note()
        assert world.tokens_under_way == 2 * COST
        await world.end_one()
        await world.pass_time(1)  # for so long it does not look again
        assert await statuses(world, Asked(0, "text c"), Asked(0, "text d")) == [0, 429]


async def test_a_client_that_goes_gives_its_tokens_back(valkey: Server, tmp_path: Path) -> None:
    async with limited_gateways(valkey, tmp_path, max_enqueued_tokens=COST) as world:
        for _ in range(5):
            [post] = await world.post(Asked(0, "text a"))
            assert post.status == 0
            await world.leave(post)


async def charged(desk: Desk, *, at_ms: int = 0, gateway: str = "g", tokens: int = 1) -> ChargeReply:
    """`at_ms`: of the gateway's own clock."""
    limits = Limits(requests_per_min=2, tokens_per_min=100)
    call = charge(
        KEYS, limits, id="a q", tokens=tokens, ttl_ms=DAY_MS, gateway=gateway, gateway_ms=at_ms
    )  # fmt: skip
    return await desk.run(call)


async def set_clock(desk: Desk, seconds: int) -> None:
    """As LimitedGateways.set_clock."""
    for name in ("requests", "tokens", "moved_ms"):
        value = float(await desk.redis.hget(KEYS.rates, name) or 0)
        await desk.redis.hset(KEYS.rates, name, f"{value - seconds * 1000:.3f}")
    async for key in desk.redis.scan_iter(KEYS.seen("*")):
        await desk.redis.hincrby(key, "server_ms", -seconds * 1000)


async def test_a_clock_set_back_refuses_for_a_minute_at_most(desk: Desk) -> None:
    assert [(await charged(desk)).refused_by for _ in range(3)] == ["", "", "requests"]
    await set_clock(desk, -HOUR_S)
    refused = await charged(desk)
    assert refused.refused_by == "requests"
    assert refused.retry_after_ms <= 30_000
    assert refused.tokens_reset_ms <= 60_000
    await set_clock(desk, 30)  # half a minute passes
    assert [(await charged(desk, at_ms=30_000)).refused_by for _ in range(2)] == ["", "requests"]


async def test_a_clock_set_forward_fills_nothing(desk: Desk) -> None:
    """Whichever of the gateways is the first to charge, and the second."""
    for gateway in ("g", "h"):
        assert not (await charged(desk, gateway=gateway)).refused_by
    await set_clock(desk, HOUR_S)
    for gateway in ("h", "g", "h"):
        refused = await charged(desk, gateway=gateway)
        assert (refused.refused_by, refused.requests_left) == ("requests", 0)
        assert 25_000 < refused.retry_after_ms <= 30_000
    await set_clock(desk, HOUR_S)  # it passes
    assert not (await charged(desk, at_ms=HOUR_S * 1000)).refused_by


async def test_one_job_is_under_way_once(desk: Desk) -> None:
    limits = Limits(max_enqueued_tokens=10)
    given = {"ttl_ms": DAY_MS, "gateway": "g", "gateway_ms": 0, "tokens": 6}
    replies = [await desk.run(charge(KEYS, limits, id=id, **given)) for id in ("a q", "a q", "b q")]
    assert [reply.refused_by for reply in replies] == ["", "", "enqueued"]
    await desk.run(uncharge(KEYS, ["6 a q"]))
    assert not (await desk.run(charge(KEYS, limits, id="b q", **given))).refused_by


class Ended:
    """A client of a queue, by its jobs' states."""

    def __init__(self) -> None:
        self.by_id: dict[str, State] = {}

    async def states(self, own_ids: Sequence[str]) -> list[State | None]:
        return [self.by_id.get(own_id) for own_id in own_ids]


async def test_a_list_is_under_way_until_its_last_job_ends(valkey: Server) -> None:
    jobs, redis = Ended(), GatewayRedis(valkey.url)
    limits = RateLimits(redis, {"q": jobs})
    caller = ApiKey(tenant="acme", max_enqueued_tokens=10)

    def of(name: str) -> Charge:
        post = IdempotentRequest("acme", "d", name, "q", joined=False, once=name)
        return Charge(caller, post, 6, jobs=2)

    try:
        await limits.charge(first := of("a"), {})
        for state in (State.RUNNING, State.FAILED):
            jobs.by_id = {"a-0": State.COMPLETED, "a-1": state}
            await limits.charge(of("a"), {})  # its jobs exist: it is charged once
            await limits.settle(first)
            members = await redis.client.zrange(KEYS.enqueued, 0, -1)
            assert members == ([] if state.terminal else [b"6 a+2 q"])
        await limits.charge(of("b"), {})
        jobs.by_id = {"b-0": State.CANCELLED, "b-1": State.COMPLETED}
        await limits.charge(of("c"), {})  # which looks, and finds that they have ended
    finally:
        await redis.aclose()
