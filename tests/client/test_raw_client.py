"""The example for clients in other languages, run as it is shipped, against a hand-driven worker."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.servers.servers import Server
from support.wire.image_files import png
from support.workers.hand_worker import HandWorker, hand_worker, serving_thread

from millstream import AsyncClient, Conflict, Submitted
from millstream.wire.calls import scripts

EXAMPLE = Path(__file__).resolve().parents[2] / "ops" / "examples" / "raw_client.py"


@pytest.fixture
def example() -> ModuleType:
    module = ModuleType("raw_client")
    module.__file__ = str(EXAMPLE)
    exec(compile(EXAMPLE.read_text(), str(EXAMPLE), "exec"), vars(module))
    return module


def test_it_uses_nothing_of_the_package() -> None:
    tree = ast.parse(EXAMPLE.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} - sys.stdlib_module_names == {"redis", "msgpack"}


def test_it_runs_from_the_command_line(server: Server) -> None:
    thread = serving_thread(server.url, lambda request: [f"{request.prompt}", " a", " time"], jobs=1)
    command = [sys.executable, str(EXAMPLE), server.url, "Once upon"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    thread.join()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Once upon a time\n0-")
    assert "'state': 'completed'" in done.stdout


@asynccontextmanager
async def both(server: Server, example: ModuleType) -> AsyncIterator[tuple[Any, HandWorker]]:
    raw = await asyncio.to_thread(example.RawClient, server.url)
    async with hand_worker(server.url) as worker:
        yield raw, worker
    raw.redis.close()


async def test_a_stream_that_loses_messages(server: Server, example: ModuleType) -> None:
    async with both(server, example) as (raw, worker):
        job_id = await asyncio.to_thread(raw.submit, "Hello")
        reading = asyncio.ensure_future(asyncio.to_thread(lambda: "".join(raw.stream(job_id))))
        job = await worker.take()
        for number in range(12):
            await job.say(f"{number} ", publish=number % 3 != 1)
        job = await job.die()
        await job.say("and on", publish=False)
        await job.end()
        assert await reading == "".join(f"{number} " for number in range(12)) + "and on"
        late = await asyncio.to_thread(lambda: "".join(raw.stream(job_id)))
        assert late == raw.result(job_id)["choices"][0]["text"]


async def test_results_and_cancellation(server: Server, example: ModuleType) -> None:
    async with both(server, example) as (raw, _):
        job_id = raw.submit("Hello", "letter-1")
        assert raw.result(job_id) is None
        assert raw.cancel(job_id) == "cancelled"
        assert raw.result(job_id) == {"state": "cancelled"}
        assert list(raw.stream(job_id)) == []
        with pytest.raises(KeyError):
            raw.result("0-nobody")
        with pytest.raises(KeyError):
            list(raw.stream("0-nobody"))


async def test_a_count_has_a_version_of_its_own(server: Server, example: ModuleType) -> None:
    async with both(server, example) as (raw, worker):
        counting = asyncio.ensure_future(asyncio.to_thread(raw.count, "Hello you"))
        job = await worker.take()
        assert (job.request.kind, job.request.version, job.entry.version) == ("count", 4, 4)
        await job.end()
        assert await counting == 1  # as this worker says of any prompt


async def test_a_request_has_the_version_of_its_fields(server: Server, example: ModuleType) -> None:
    async with both(server, example) as (raw, worker):
        for sampling in ({"bad_words": ["you"]}, {"n": 17}, {"stop": ["x"] * 17}, {"stop": ["x" * 257]}):
            raw.submit("Hello you", **sampling)
            job = await worker.take()
            assert (job.request.version, job.entry.version, job.request.lowest_version()) == (5, 5, 5)
            await job.end()
        raw.submit("Hello you", n=16)
        assert (await worker.take()).entry.version == 1


async def test_both_clients_send_the_same_image(server: Server, example: ModuleType) -> None:
    async with both(server, example) as (raw, worker), AsyncClient(server.url) as client:
        job_id = raw.submit("Read it.", "a", image=png(), max_tokens=5)
        job = await worker.take()
        assert (job.request.version, job.entry.version, job.request.lowest_version()) == (7, 7, 7)
        assert [image.data for image in job.request.images] == [png()]
        content = [{"type": "image", "image": png()}, {"type": "text", "text": "Read it."}]
        raw.redis.hset("{ms:default}:meta", "version_max", 7)  # as a worker that reads images would have it
        again = await client.submit(messages=[{"role": "user", "content": content}], id="a", max_tokens=5)
        assert (again.id, again.created) == (job_id, False)


async def test_both_clients_mean_the_same_job(server: Server, example: ModuleType) -> None:
    async with both(server, example) as (raw, _), AsyncClient(server.url) as client:
        job_id = raw.submit("Grüße", "a", max_tokens=5, stop=["\n"])
        again = await client.submit("Grüße", id="a", max_tokens=5, stop="\n")
        assert (again.id, again.created) == (job_id, False)
        with pytest.raises(Conflict):
            await client.submit("Grüße", id="a", max_tokens=6)
        count: Any = {"prompt": "Grüße", "id": "c", "kind": "count"}
        raw.submit("Grüße", "c", kind="count")
        raw.redis.hset("{ms:default}:meta", "version_max", 4)  # as a worker that counts would have it
        async with AsyncClient(server.url) as newer:
            [same] = await newer.submit_many([count])
        assert isinstance(same, Submitted)
        assert not same.created
        floats = {"temperature": 0.0, "frequency_penalty": 1.0, "logit_bias": {"7": 2.0}}
        job_id = raw.submit("Hello", "b", **floats)
        again = await client.submit("Hello", id="b", temperature=0, frequency_penalty=1, logit_bias={7: 2})
        assert (again.id, again.created) == (job_id, False)


@pytest.mark.parametrize("name", ["submit", "cancel", "open_queue", "expire_one"])
def test_it_puts_scripts_together_as_the_package_does(example: ModuleType, name: str) -> None:
    put_together: Callable[[str, set[str]], str] = example.script
    assert put_together(name, set()) == scripts.script(name).source
