"""Models of a run's queues, compared with those that its run file names; no workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from support.servers.servers import Server, free_port
from support.workers.answering_worker import read_rows
from support.workers.hand_worker import replace_model

from millstream import AsyncClient, InvalidRequest, JobFailed, ModelIdentity, Result
from millstream.batch.files.journal import Journal
from millstream.batch.run.model_watch import ModelWatch, OnChange

OLD, NEW = ModelIdentity("old", "0" * 32), ModelIdentity("new", "1" * 32)
UNKNOWN = ModelIdentity("of an older worker")


def by(model: ModelIdentity) -> Result:
    return Result(model=model.name, model_digest=model.digest or None)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "out") as opened:
        yield opened


@pytest.fixture
async def client(valkey: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(valkey.url) as opened:
        yield opened


async def test_a_model_is_recorded_when_it_is_met_first(
    journal: Journal, client: AsyncClient, valkey: Server
) -> None:
    watch = ModelWatch(journal, OnChange.STOP)
    await watch.look(client)
    assert await watch.admits(client, by(UNKNOWN), again=True)
    assert not journal.notes.models
    await replace_model(valkey.url, OLD)
    await watch.look(client)
    await watch.look(client)
    assert await watch.admits(client.with_queue("large"), by(NEW), again=True)
    assert await watch.admits(client, by(UNKNOWN), again=True)
    assert journal.notes.models == {"default": OLD, "large": NEW}
    assert [row["queue"] for row in read_rows(journal.run_file)[1:]] == ["default", "large"]


@pytest.mark.parametrize("on_change", [OnChange.STOP, OnChange.REDO])
async def test_another_model_stops_the_run(
    journal: Journal, client: AsyncClient, valkey: Server, on_change: OnChange
) -> None:
    watch = ModelWatch(journal, on_change)
    journal.notes.serves("default", OLD)
    await replace_model(valkey.url, NEW)
    ways = r"new \(111111111111\), .*answered by old \(000000000000\): .*--redo-changed.*--keep-answers"
    with pytest.raises(InvalidRequest, match=rf"^model: queue 'default' now has {ways}"):
        await watch.look(client)
    for end in (by(NEW), JobFailed("0-a", "failed", "too long", by(NEW))):
        with pytest.raises(InvalidRequest, match=rf"queue 'default' (is by|now has) {ways}"):
            await watch.admits(client, end, again=True)
    assert journal.notes.models == {"default": OLD}


async def test_answers_of_any_model_are_kept_where_that_is_asked_for(
    journal: Journal, client: AsyncClient, valkey: Server
) -> None:
    watch = ModelWatch(journal, OnChange.KEEP)
    journal.notes.serves("default", OLD)
    await replace_model(valkey.url, NEW)
    assert await watch.admits(client, by(NEW), again=True)
    assert journal.notes.models == {"default": NEW}
    assert await watch.admits(client, by(OLD), again=True)  # submitted before; the queue has the new one
    assert journal.notes.models == {"default": NEW}
    await replace_model(valkey.url, OLD)
    await watch.look(client)
    assert journal.notes.models == {"default": OLD}


async def test_an_old_answer_is_computed_anew_and_not_for_ever(
    journal: Journal, client: AsyncClient, valkey: Server
) -> None:
    watch = ModelWatch(journal, OnChange.REDO)
    journal.notes.serves("default", NEW)
    await replace_model(valkey.url, NEW)
    assert not await watch.admits(client, by(OLD), again=True)
    with pytest.raises(InvalidRequest, match="an answer of queue 'default' is by old"):
        await watch.admits(client, by(OLD), again=False)


async def test_an_absent_server_or_an_embedded_worker_is_not_compared(
    tmp_path: Path, journal: Journal
) -> None:
    async with AsyncClient(f"redis://127.0.0.1:{free_port()}") as client:
        journal.notes.serves("default", OLD)
        await ModelWatch(journal, OnChange.STOP).look(client)
        with Journal(tmp_path / "embedded", "a/model") as embedded:
            watch = ModelWatch(embedded, OnChange.STOP)
            assert await watch.admits(client, by(OLD), again=True)
            assert await watch.admits(client, by(NEW), again=True)
            assert not embedded.notes.models
