"""What a gateway does as its role: nothing of it is refused, but what it may not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import openai
import pytest

from millstream.gateway.redis.tenant_keys import TenantKeys
from support.batches import answered, chat, files_of, finished, made
from support.commands import invoke
from support.gateway import gateway
from support.roles.signing_in import refusals
from support.servers.secured import SecuredServer
from support.workers.counting_worker import counted, until, write_tokenizer
from support.workers.work import Work


async def a_gateway_answers(secured: SecuredServer, work: Work, folder: Path) -> None:
    """With an admin's key: requests with limits, repeated and withdrawn ones, models, backlog."""
    limits = ("--tokens-per-min", 10**6, "--max-enqueued-tokens", 1000)
    made = await asyncio.to_thread(
        invoke, "keys", "add", "acme", *limits, "--redis-url", secured.login("admin")
    )
    ask = {"model": "default", "prompt": "w1", "max_tokens": 3}
    once = {"extra_headers": {"Idempotency-Key": "one"}}
    async with work():
        with gateway(secured.login("gateway")) as door:
            async with door.client(made.stdout.strip(), retries=9) as client:  # until the worker is up
                for more in ({}, once, once, {"extra_headers": {"X-Stainless-Retry-Count": "1"}}):
                    answer = await client.completions.create(**ask, **more)
                    assert answer.choices[0].text == counted(2, 3)
                stream = await client.completions.create(**ask, stream=True)
                assert "".join([chunk.choices[0].text async for chunk in stream]) == counted(2, 3)
                too_many = ask | {"max_tokens": 5000, "extra_headers": {"Idempotency-Key": "two"}}
                with pytest.raises(openai.RateLimitError):
                    await client.completions.create(**too_many)
                assert [one.id async for one in client.models.list()] == ["default"]
                await files_live_and_end(client)
                async with httpx2.AsyncClient(base_url=door.url, headers=client.auth_headers) as http:

                    async def one_worker() -> bool:  # its heartbeat may be late on a busy machine
                        backlog = (await http.get("/backlog")).json()
                        return bool(backlog["queues"]["default"]["workers"] == 1)

                    await until(one_worker)
                    page = (await http.get("/metrics")).text
                    assert 'millstream_dead_letters{queue="default"} 0.0' in page
                    assert "millstream_tenant" not in page
    assert refusals(secured) == []


async def files_live_and_end(client: openai.AsyncOpenAI) -> None:
    made = [await client.files.create(file=b"x", purpose="user_data") for _ in range(3)]
    for order in ("asc", "desc"):
        assert len([one async for one in client.files.list(limit=1, order=order)]) == 3
    for one in made:
        assert (await client.files.content(one.id)).content == b"x"
        await client.files.delete(one.id)


async def a_gateway_runs_batches(secured: SecuredServer, work: Work, folder: Path) -> None:
    lines = [chat(number, f"w{number}", 2) for number in range(1, 4)]
    limits = ("--max-enqueued-tokens", 10_000, "--redis-url", secured.login("admin"))
    key = (await asyncio.to_thread(invoke, "keys", "add", "acme", *limits)).stdout.strip()
    tokenizer = write_tokenizer(folder, chat=True)
    with gateway(secured.login("gateway")) as door:
        async with work(tokenizer=tokenizer), door.client(key) as client:
            done = await finished(client, (await made(client, lines)).id)
            assert done.status == "completed"
            output, _ = await files_of(client, done)
            assert answered(output) == {f"r{number}": counted(number + 1, 2) for number in range(1, 4)}
            invalid = await finished(client, (await made(client, [b"{"])).id)
            assert invalid.status == "failed"
            with secured.as_admin() as admin:
                admin.delete(TenantKeys("acme").batch(invalid.id))  # as if it had expired
            assert [one.id async for one in client.batches.list(limit=1)] == [done.id]
            with pytest.raises(openai.BadRequestError):
                await client.batches.list(after=invalid.id)
    assert refusals(secured) == []
