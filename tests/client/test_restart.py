"""A server that goes away in the middle of everything, and comes back with its append-only file."""

from __future__ import annotations

import asyncio

import pytest
from support.servers.servers import Server
from support.workers.hand_worker import hand_worker

from millstream import AsyncClient, ClientOptions, EndEvent, Transcript, Unavailable


async def test_streams_and_waits_outlast_a_restart(lasting: Server) -> None:
    async with hand_worker(lasting.url) as worker, AsyncClient(lasting.url) as client:
        streamed, waited = await client.submit("stream me"), await client.submit("wait for me")
        first, second = await worker.take(), await worker.take()
        waiting = asyncio.ensure_future(client.wait(waited.id, timeout_s=60))
        events = client.stream(streamed.id)
        seen = Transcript()
        await first.say("before ")
        seen.add(await anext(events))
        reading = asyncio.ensure_future(anext(events))
        lasting.kill()
        lasting.start()
        await first.say("after")
        await first.end()
        await second.end(last="done")
        seen.add(await reading)
        rest = [event async for event in events]
        for event in rest:
            seen.add(event)
        assert seen.text() == "before after"
        assert isinstance(rest[-1], EndEvent)
        assert (await waiting).choices[0].text == "done"
        assert (await client.submit("and again")).created


async def test_a_stream_gives_up_on_a_server_that_stays_away(lasting: Server) -> None:
    options = ClientOptions(reconnect_s=0.3, timeout_s=0.5)
    async with AsyncClient(lasting.url, options=options) as client:
        submitted = await client.submit("Hello")
        reading = asyncio.ensure_future(anext(client.stream(submitted.id)))
        waiting = asyncio.ensure_future(client.wait(submitted.id))
        await asyncio.sleep(0)
        lasting.kill()
        for task in (reading, waiting):
            with pytest.raises(Unavailable, match=str(lasting.port)):
                await task


async def test_a_client_that_opens_in_a_restart_waits_for_the_server(lasting: Server) -> None:
    """As long as `reconnect_s` for what waits, as long as `wait_s` for a submit."""
    server = lasting
    async with hand_worker(server.url) as worker, AsyncClient(server.url) as client:
        job = await client.submit("Hello", id="a")
        await (await worker.take()).end(last="done")
    server.kill()
    async with (
        AsyncClient(server.url) as one,
        AsyncClient(server.url) as two,
        AsyncClient(server.url) as three,
    ):
        opening = [
            asyncio.ensure_future(one.wait(job.id)),
            asyncio.ensure_future(anext(two.stream(job.id))),
            asyncio.ensure_future(three.submit("Hello", id="a", wait_s=60)),
        ]
        failed, _ = await asyncio.wait(opening, timeout=1.0)  # longer than redis-py tries by itself
        assert not failed
        server.start()
        result, event, again = await asyncio.gather(*opening)
    assert (result.choices[0].text, event.text, again.created) == ("done", "done", False)
