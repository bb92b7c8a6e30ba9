"""Two gateways in this process, before one queue that nobody serves until told to, and a key with limits.
Time can pass, and the server's clock be set.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import redis.asyncio
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Message

from millstream.client.submit.requests import draft
from millstream.gateway.auth.api_keys import ApiKey
from millstream.gateway.auth.rate_limits import RateLimits
from millstream.gateway.context import GatewayContext
from millstream.gateway.gateway_app import application
from millstream.gateway.gateway_metrics import GatewayMetrics
from millstream.gateway.gateway_settings import GatewaySettings
from millstream.gateway.redis.tenant_keys import API_KEYS, TenantKeys
from millstream.wire.keys import QueueKeys
from millstream.wire.messages.job_messages import State
from support.servers.servers import Server
from support.workers.counting_worker import until
from support.workers.hand_worker import HandWorker, hand_worker, register

KEY, TENANT = "ms-limited", "acme"
GRACE_S = 0.05
TOKENS_PER_MIN = 10_000  # unless another limit is asked for
MAX_TOKENS = 30
COST = draft({"messages": [{"role": "user", "content": "text a"}], "max_tokens": MAX_TOKENS}, 0, 1000).cost
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to a gateway. `once`: its text is its Idempotency-Key. `repeats`: so its client says."""

    gateway: int
    text: str
    once: bool = False
    repeats: bool = False
    tokens: int = MAX_TOKENS

    @property
    def body(self) -> bytes:
        messages = [{"role": "user", "content": self.text}]
        return json.dumps({"model": "default", "messages": messages, "max_tokens": self.tokens}).encode()

    @property
    def headers(self) -> dict[str, str]:
        made = {"authorization": f"Bearer {KEY}", "content-length": str(len(self.body))}
        made |= {"idempotency-key": self.text} if self.once else {}
        return made | ({"x-stainless-retry-count": "1"} if self.repeats else {})


@dataclass(slots=True, eq=False)
class Post:
    """One POST under way. `status` 0: it is not answered yet."""

    asked: Asked
    left: asyncio.Event
    status: int = 0
    task: asyncio.Task[None] | None = None


class LimitedGateways:
    """`queued`: when each job was queued, in seconds of a clock that nobody sets."""

    def __init__(self, apps: list[ASGIApp], worker: HandWorker) -> None:
        self._apps = apps
        self._worker = worker
        self._redis = worker.redis
        self._keys = TenantKeys(TENANT)
        self._passed_s = 0.0
        self._jobs: dict[str, State] = {}
        self.posts: list[Post] = []
        self.queued: list[float] = []

    def now_s(self) -> float:
        return time.monotonic() + self._passed_s

    async def post(self, *asked: Asked) -> list[Post]:
        """Post at once, and wait until each has been refused, or has asked the queue for its job."""
        before = await self._submits()
        posts = [Post(one, asyncio.Event()) for one in asked]
        for post in posts:
            post.task = asyncio.create_task(self._through(post))
        self.posts += posts

        async def are_settled() -> bool:
            asking = sum(1 for post in posts if post.status in (0, 200))
            return await self._submits() >= before + asking

        await until(are_settled)
        return posts

    async def _submits(self) -> int:
        return sum(submits for _, submits in (await self._rows()).values())

    async def _through(self, post: Post) -> None:
        body, headers = post.asked.body, post.asked.headers
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if messages:
                return messages.pop()
            await post.left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                post.status = message["status"]

        path = "/v1/chat/completions"
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
            "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
            "headers": pairs, "server": ("127.0.0.1", 8000), "client": ("127.0.0.1", 50_000),
        }  # fmt: skip
        await self._apps[post.asked.gateway](scope, receive, send)

    async def note(self) -> None:
        """Look at the queue's jobs: those that were not there before were queued now."""
        found = {job_id: state for job_id, (state, _) in (await self._rows()).items()}
        self.queued += [self.now_s() for job_id in found if job_id not in self._jobs]
        self._jobs = found

    async def _rows(self) -> dict[str, tuple[State, int]]:
        """The states of the jobs, and how often each was asked for."""
        found = {}
        async for key in self._redis.scan_iter(self._worker.keys.job("*")):
            state, submits = await self._redis.hmget(key, "state", "submits")
            if state is not None:  # it was not forgotten meanwhile
                found[key.decode()] = State(state.decode()), int(submits)
        return found

    async def leave(self, post: Post) -> None:
        """Its client goes, and its gateway has done what it does then."""
        post.left.set()
        assert post.task is not None
        await post.task

    async def hand_over(self, post: Post, gateway: int) -> list[Post]:
        """Its client goes, and repeats it without a key."""
        post.left.set()
        await asyncio.sleep(GRACE_S / 5)
        return await self.post(replace(post.asked, gateway=gateway, once=False, repeats=True))

    async def end_one(self) -> None:
        """The worker answers the job that has waited longest, if there is one, and so do the gateways."""
        if State.QUEUED not in self._jobs.values():
            return
        await (await self._worker.take()).end(last="x")
        await asyncio.sleep(0.02)

    async def forget_results(self) -> None:
        """The time to live of all that has ended is over."""
        for key, state in self._jobs.items():
            if state.terminal:
                await self._redis.delete(key)

    async def pass_time(self, seconds: float) -> None:
        self._passed_s += seconds
        await self.set_clock(seconds)

    async def set_clock(self, seconds: float) -> None:
        """Forward, or back: nobody can set the server's TIME, so what the limits have stored is made so much
        older, or younger, which is the same to them.
        """
        by_ms = round(seconds * 1000)
        for name in ("requests", "tokens", "moved_ms"):
            if (value := await self._redis.hget(self._keys.rates, name)) is not None:
                await self._redis.hset(self._keys.rates, name, f"{float(value) - by_ms:.3f}")
        async for key in self._redis.scan_iter(self._keys.seen("*")):
            await self._redis.hincrby(key, "server_ms", -by_ms)
        for member, score in await self._redis.zrange(self._keys.enqueued, 0, -1, withscores=True):
            await self._redis.zadd(self._keys.enqueued, {member: score - by_ms})

    async def look(self) -> None:
        """Each gateway charges the tenant, in vain."""
        posts = await self.post(*(Asked(gateway, "look", tokens=2 * TOKENS_PER_MIN) for gateway in (0, 1)))
        assert [post.status for post in posts] == [429, 429]

    def check(self, per_minute: float) -> None:
        """In no window were more jobs queued than may be, but for one: a minute's worth, and what refills."""
        for first, begin_s in enumerate(self.queued):
            for last, end_s in enumerate(self.queued[first:], first):
                most = per_minute * (1 + (end_s - begin_s) / MINUTE_S) + 1
                assert last - first + 1 <= most, (begin_s, end_s, last - first + 1)

    @property
    def tokens_under_way(self) -> int:
        return COST * sum(1 for state in self._jobs.values() if not state.terminal)

    async def close(self) -> None:
        for post in self.posts:
            post.left.set()
        await asyncio.gather(*(post.task for post in self.posts if post.task is not None))


@contextlib.asynccontextmanager
async def limited_gateways(server: Server, folder: Path, **limits: int) -> AsyncIterator[LimitedGateways]:
    """The server is emptied first. Each gateway has charged the tenant once, in vain."""
    async with contextlib.AsyncExitStack() as exits:
        admin = await exits.enter_async_context(redis.asyncio.Redis(port=server.port))
        await admin.flushall()
        key = ApiKey(tenant=TENANT, **{"tokens_per_min": TOKENS_PER_MIN} | limits)
        digest = hashlib.sha256(KEY.encode()).hexdigest()
        await admin.hset(API_KEYS, digest, key.model_dump_json())
        register(server.port, QueueKeys("default").shard(0))
        worker = await exits.enter_async_context(hand_worker(server.url))
        apps: list[ASGIApp] = []
        made = LimitedGateways(apps, worker)
        for _ in range(2):
            registry = CollectorRegistry()
            settings = GatewaySettings(
                redis_url=server.url, files_url=str(folder), disconnect_grace_s=GRACE_S
            )
            context = GatewayContext(settings, GatewayMetrics(registry))
            exits.push_async_callback(context.aclose)
            context.rate_limits = RateLimits(context.redis, context.clients, made.now_s)
            apps.append(application(context, registry, 1000))
        exits.push_async_callback(made.close)
        await made.look()
        yield made
