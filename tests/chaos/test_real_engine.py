"""The same blows to workers that compute: tiny random models in float32, of keys and values alone, and with
recurrent states beside them, whose prefixes all jobs share. Whatever is killed, every text is that of the
undisturbed run, and no engine finds its pools damaged.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.models import checkpoints
from support.workers.counting_worker import REAL, until, write_tokenizer

from chaos import checks
from chaos.arena import Arena, Setup
from chaos.faults.process import kill, kill_engine
from chaos.ledger import Entry, Order
from millstream import AsyncClient, Result
from millstream.wire.messages.record import read_job

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("real engine")]  # one after the other

PREFIX = " ".join(f"w{n}" for n in range(3, 51))  # three blocks of KV cache
TOKENS = 200
JOBS = 4


@pytest.fixture(scope="module", params=["llama", pytest.param("qwen3_5_text", marks=pytest.mark.alone)])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"max_position_embeddings": 512, "num_hidden_layers": 4}
    if request.param in checkpoints.RECURRENT:
        sizes["linear_num_value_heads"] = 32  # so many fill PyTorch's vectors: no neighbour changes a bit
    return write_tokenizer(checkpoints.build(request.param, tmp_path_factory.mktemp("models"), **sizes))


def order(own_id: str, number: int, texts: tuple[str, ...] = ()) -> Order:
    fields = {
        "prompt": f"{PREFIX} w{60 + number}",
        "max_tokens": TOKENS,
        "temperature": 1.2,
        "top_p": 0.95,
        "seed": number,
        "n": 1 + number % 2,
        "ignore_eos": True,
        "stream": number % 3 > 0,
    }
    return Order(own_id, fields, texts)


async def undisturbed(client: AsyncClient) -> list[Result]:
    orders = [order(f"calm-{number}", number) for number in range(JOBS)]
    jobs = [await client.submit(id=one.own_id, **one.fields) for one in orders]
    return [await client.wait(job.id, timeout_s=60) for job in jobs]


@pytest.mark.timeout(240)  # engines that load the real libraries, six times
async def test_kills_change_no_character(model: Path) -> None:
    settings = REAL | {"model": str(model), "max_rows": 16, "speculate": "always", "kv_dtype": "int8"}
    async with Arena(Setup(crew=2, customers=0, settings=settings), "valkey", "real") as arena:
        await arena.somebody(0.0, beside=1, wait_s=60)
        arena.crew.size = 1  # nobody is hired for whom is killed: there is one more than needed
        client = arena.load.shared(0)
        whole = await undisturbed(client)
        assert len({result.choices[0].text for result in whole}) == JOBS
        entries = [
            await arena.load.place(order(f"hurt-{n}", n, tuple(choice.text for choice in result.choices)))
            for n, result in enumerate(whole)
        ]
        for entry in entries:
            arena.load.spawn(arena.load.readers.follow(client, entry, "follow"))
            arena.load.spawn(arena.load.readers.wait(client, entry))
        await _told(entries, 25)
        await kill_engine.strike(arena)
        await _told(entries, 50)
        await _kill_an_owner(arena, entries)
        await _told(entries, 75)
        await kill_engine.strike(arena)
        assert await arena.load.over(60)
        violations = await checks.judge(arena)
        results = [await client.result(entry.id) for entry in entries]
        statuses = await arena.crew.drain()
        violations += await checks.nothing_left(arena)
        logs = [member.log.read_text(errors="replace") for member in arena.crew.members]
    assert not violations, "\n".join([*map(str, violations), *logs])
    assert set(statuses.values()) == {0}
    assert {result.kv_format for result in results} == {"int8"}
    assert sum(result.usage.cached_tokens for result in whole) > 0
    assert max(result.attempts for result in results) == 2
    for number, (result, calm) in enumerate(zip(results, whole, strict=True)):
        assert result.usage.output_tokens == calm.usage.output_tokens == TOKENS * (1 + number % 2)
    # The killed worker may not have logged the death of its engine.
    assert any("engine died" in log for log in logs), "\n".join(logs)


async def _kill_an_owner(arena: Arena, entries: list[Entry]) -> None:
    """One of the two workers may have no job."""
    await arena.somebody(0.0, beside=1)
    for entry in entries:
        for shard in arena.shards:
            record = await read_job(arena.admin, shard, entry.id)
            for member in await arena.on_duty():
                if record is not None and record.owner and member.owns(record.owner):
                    return await kill(arena, member)
    raise AssertionError("no worker has a job")


async def _told(entries: list[Entry], words: int) -> None:
    """Until somebody who reads along has so many."""

    async def told() -> bool:
        texts = [reading.transcript.text() for entry in entries for reading in entry.readings]
        return any(len(text.split()) >= words for text in texts)

    await until(told, 60)
