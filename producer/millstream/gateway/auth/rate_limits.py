"""A caller's limits: a job is charged before it is queued, whichever POST of those that ask for it queues it.

Its tokens count as under way until it has ended. A gateway takes them off when its POST ends, if the job has;
where the job went on without its client, or the gateway died, the next request that they would refuse looks.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import chain
from typing import Protocol
from uuid import uuid4

from millstream.errors import MillstreamError
from millstream.gateway.auth.api_keys import ApiKey
from millstream.gateway.auth.idempotency import IdempotentRequest
from millstream.gateway.redis.gateway_calls import ChargeReply, Limits, charge, uncharge
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.gateway.redis.tenant_keys import TenantKeys
from millstream.openai.api_error import NO_RETRY, ApiError, retry_after
from millstream.openai.prompt_list import listed_id, own_ids
from millstream.wire.messages.job_messages import State

KEEP_S = 86_400.0  # after which a job counts as under way no more, even if nobody has seen its end
SUBMITTING_S = 60.0  # after which a charged job that does not exist was never queued, or is gone
LOOK_S = 1.0  # after a look at a tenant's jobs that was in vain
LOOKED_AT = 1000
_NAMES = {"requests": "requests per minute", "tokens": "tokens per minute", "enqueued": "tokens under way"}


class JobStates(Protocol):
    async def states(self, own_ids: Sequence[str]) -> list[State | None]:
        """Returns the states of a queue's jobs; None for one that does not exist."""
        ...


@dataclass(slots=True, eq=False)
class Charge:
    """The charge of one POST, of `jobs` jobs. `made`: they may be queued, and their tokens count until
    `settle`.
    """

    caller: ApiKey
    post: IdempotentRequest
    tokens: int
    jobs: int = 1
    made: bool = False

    @property
    def name(self) -> str:
        """Returns the one name of its jobs, by which they are found again."""
        return listed_id(self.post.own_id, self.jobs)

    @property
    def id(self) -> str:
        return f"{self.name} {self.post.queue}"


class RateLimits:
    """`clients`: by queue. `monotonic`: seconds, of a clock that nobody sets."""

    def __init__(
        self,
        redis: GatewayRedis,
        clients: Mapping[str, JobStates],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = redis
        self._clients = clients
        self._monotonic = monotonic
        self._gateway = uuid4().hex[:16]
        self._next_look_s: dict[str, float] = {}  # by tenant

    async def charge(self, made: Charge, headers: dict[str, str]) -> None:
        """Charge a POST that is going to queue its job, which may exist already; adds the state of the limits
        to `headers`. Raises ApiError 429, Unavailable.
        """
        caller, post = made.caller, made.post
        if not caller.is_limited:
            return
        if post.joined or post.once:
            states = await self._clients[post.queue].states(own_ids(made.name))
            if any(state is not None for state in states):
                made.made = True
                return
        reply = await self._charge(caller, caller.limits, made.id, made.tokens, KEEP_S)
        headers |= _headers(caller, reply)
        if reply.refused_by:
            raise _refusal(caller, reply, made.tokens)
        made.made = True

    async def settle(self, made: Charge) -> None:
        """Its tokens are under way no more, unless its job goes on. To be called before an ended job is
        forgotten, and when nothing goes on here.
        """
        if not made.made or not made.caller.max_enqueued_tokens:
            return
        keys, member = TenantKeys(made.caller.tenant), f"{made.tokens} {made.id}"
        with contextlib.suppress(MillstreamError):  # the next look finds it
            if await self._ended([member], missing={member}):
                await self._redis.run(uncharge(keys, [member]))
                made.made = False

    async def charge_batch(self, caller: ApiKey, id: str, tokens: int, ttl_s: float) -> str:
        """Count a batch among the enqueued tokens, not per minute; returns how it stands there, for the
        script that ends the batch, or an empty text if nothing was counted. Raises ApiError 429, Unavailable.
        """
        if not caller.max_enqueued_tokens:
            return ""
        limits = Limits(max_enqueued_tokens=caller.max_enqueued_tokens)
        reply = await self._charge(caller, limits, id, tokens, ttl_s)
        if reply.refused_by:
            raise _refusal(caller, reply, tokens)
        return f"{tokens} {id}"

    async def _charge(
        self, caller: ApiKey, limits: Limits, id: str, tokens: int, ttl_s: float
    ) -> ChargeReply:
        """Refused for the tokens under way, it is tried again without those of jobs that have ended."""
        keys = TenantKeys(caller.tenant)
        while True:
            call = charge(
                keys, limits, id=id, tokens=tokens, ttl_ms=round(ttl_s * 1000),
                gateway=self._gateway, gateway_ms=round(self._monotonic() * 1000),
            )  # fmt: skip
            reply = await self._redis.run(call)
            if reply.refused_by != "enqueued" or reply.retry_after_ms < 0 or not await self._look(keys):
                return reply

    async def _look(self, keys: TenantKeys) -> bool:
        """Take off what has ended among the tenant's jobs, the oldest first; False if nothing was."""
        now_s = self._monotonic()
        if now_s < self._next_look_s.get(keys.tenant, now_s):
            return False
        self._next_look_s[keys.tenant] = now_s + LOOK_S
        with self._redis.reach():
            rows = await self._redis.client.zrangebyscore(
                keys.enqueued, "-inf", "+inf", 0, LOOKED_AT, withscores=True
            )
            seconds, _ = await self._redis.client.time()
        charged_s = {member.decode(errors="replace"): score / 1000 - KEEP_S for member, score in rows}
        late = {member for member, at_s in charged_s.items() if abs(seconds - at_s) > SUBMITTING_S}
        if ended := await self._ended(charged_s, missing=late):
            await self._redis.run(uncharge(keys, ended))
            self._next_look_s.pop(keys.tenant, None)
        return bool(ended)

    async def _ended(self, members: Iterable[str], missing: Collection[str]) -> list[str]:
        """Those whose jobs have ended; of `missing`, also those whose jobs do not exist."""
        jobs: defaultdict[str, dict[str, list[str]]] = defaultdict(dict)  # by queue: member -> own ids
        left = LOOKED_AT
        for member in members:
            listed, _, queue = member.partition(" ")[2].partition(" ")
            if queue and left > 0:  # it is no batch, whose end takes it off
                jobs[queue][member] = own_ids(listed)
                left -= len(jobs[queue][member])
        ended = []
        for queue, of_queue in jobs.items():
            names = list(chain.from_iterable(of_queue.values()))
            states = dict(zip(names, await self._clients[queue].states(names), strict=True))
            for member, its in of_queue.items():
                found = [states[own_id] for own_id in its]
                if all(member in missing if state is None else state.terminal for state in found):
                    ended.append(member)
        return ended


def _headers(caller: ApiKey, reply: ChargeReply) -> dict[str, str]:
    told: dict[str, str] = {}
    for name, limit, left, reset_ms in (
        ("requests", caller.requests_per_min, reply.requests_left, reply.requests_reset_ms),
        ("tokens", caller.tokens_per_min, reply.tokens_left, reply.tokens_reset_ms),
    ):
        if limit:
            told[f"x-ratelimit-limit-{name}"] = str(limit)
            told[f"x-ratelimit-remaining-{name}"] = str(left)
            told[f"x-ratelimit-reset-{name}"] = _duration(reset_ms)
    return told


def _refusal(caller: ApiKey, reply: ChargeReply, tokens: int) -> ApiError:
    name = _NAMES[reply.refused_by]
    limit = dict(zip(_NAMES, astuple(caller.limits), strict=True))[reply.refused_by]
    if reply.retry_after_ms < 0:
        message = f"about {tokens} tokens are above this key's limit of {limit} {name}; ask for fewer"
        return ApiError(429, message, "rate_limit_exceeded", headers=NO_RETRY)
    wait_s = reply.retry_after_ms / 1000
    message = f"this key's limit of {limit} {name} is reached; try again in {wait_s:.1f} s"
    return ApiError(429, message, "rate_limit_exceeded", headers=retry_after(wait_s))


def _duration(milliseconds: int) -> str:
    """As OpenAI writes it: 350ms, 1s, 6m0s."""
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, seconds = divmod(round(milliseconds / 1000), 60)
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
