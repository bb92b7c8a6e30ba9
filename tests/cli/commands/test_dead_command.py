"""`millstream dead list | show | requeue | drop` against a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest
from support.commands import invoke
from support.servers.servers import Server
from support.wire.dead_letters import bury, discard_strange
from support.wire.image_files import png
from support.workers.answering_worker import answering
from support.workers.hand_worker import hand_worker

from millstream import AsyncClient, Client


@pytest.fixture(autouse=True)
def _server(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_REDIS_URL", valkey.url)


def bury_all(server: Server, prompts: Sequence[str], strange: bytes | None = None) -> None:
    """Each prompt is a job `0-<n>` that died; the stranger's entry comes last."""

    async def work() -> None:
        async with hand_worker(server.url) as worker:
            for _ in prompts:
                await bury(await worker.take())
            if strange is not None:
                await discard_strange(worker, strange)

    with Client(server.url) as client:
        for n, prompt in enumerate(prompts):
            client.submit(prompt, id=str(n), metadata={"row": str(n)})
    asyncio.run(work())


def listed() -> list[dict[str, object]]:
    return [json.loads(line) for line in invoke("dead", "list", "--json").stdout.splitlines()]


def test_an_empty_queue_has_none() -> None:
    done = invoke("dead", "list")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "no dead letters in the queue 'default'" in done.stderr
    assert listed() == []
    assert invoke("dead", "requeue", "--all").exit_code == 0


def test_list_from_the_newest_on(valkey: Server) -> None:
    bury_all(valkey, ["a", "b", "c"], b"\x1b[31mgarbage")
    lines = invoke("dead", "list").stdout.splitlines()
    assert len(lines) == 4
    assert "not a job: no id" in lines[0]
    assert "(no job)" in lines[0]
    assert "poison  attempts 1  died 0" in lines[1]
    assert lines[1].endswith("bytes  0-2")
    assert [letter["job_id"] for letter in listed()] == [None, "0-2", "0-1", "0-0"]
    assert len(invoke("dead", "list", "--limit", 2).stdout.splitlines()) == 2
    assert invoke("dead", "list", "--limit", 0).exit_code == 2


def test_show_prints_the_request_within_bounds(valkey: Server) -> None:
    bury_all(valkey, ["long " * 5000, "ok\x1b[2J\u2028"], b"\x1b[31mgarbage")
    shown = invoke("dead", "show", "0-0")
    assert shown.exit_code == 0
    for part in ("reason    poison", "attempts  1", "lane      batch", '"row": "0"', "(25,000 characters)"):
        assert part in shown.stdout
    assert len(shown.stdout) < 4000
    whole = json.loads(invoke("dead", "show", "0-0", "--json").stdout)
    assert whole["request"] == {"prompt": "long " * 5000, "metadata": {"row": "0"}}
    assert (whole["job_id"], whole["died"], whole["requeued_from"]) == ("0-0", 0, None)
    assert whole["submitted_ms"] <= whole["dead_ms"]
    strange = invoke("dead", "show", str(listed()[0]["id"]))
    assert "a foreign entry" in strange.stdout
    assert "not readable" in strange.stdout
    for one in (shown, strange, invoke("dead", "show", "0-1"), invoke("dead", "list")):
        assert "\x1b" not in one.stdout
        assert "\u2028" not in one.stdout


async def test_show_prints_no_pixels(valkey: Server) -> None:
    content = [{"type": "image", "image": png()}, {"type": "text", "text": "Read it."}]
    async with AsyncClient(valkey.url) as client, hand_worker(valkey.url) as worker:
        await client.submit(messages=[{"role": "user", "content": content}], id="a")
        await bury(await worker.take())
    shown = (await asyncio.to_thread(invoke, "dead", "show", "0-a")).stdout
    assert f'"{len(png())} bytes"' in shown
    assert "iVBOR" not in shown


def test_requeue_prints_the_new_ids(valkey: Server) -> None:
    bury_all(valkey, ["a", "b", "c"], b"garbage")
    one = invoke("dead", "requeue", "0-1")
    assert one.exit_code == 0
    assert one.stdout.startswith("0-1.r")
    rest = invoke("dead", "requeue", "--all", "--json")
    assert rest.exit_code == 0
    assert [json.loads(line)["state"] for line in rest.stdout.splitlines()] == ["queued", "queued"]
    assert "1 letters are no jobs and stay" in rest.stderr
    ids = [one.stdout.strip(), *(json.loads(line)["requeued_as"] for line in rest.stdout.splitlines())]
    with answering(valkey.url):
        assert [invoke("result", job_id, "--wait").stdout for job_id in ids] == ["B\n", "C\n", "A\n"]
    assert "requeued from    0-1" in invoke("status", ids[0]).stdout
    assert len(listed()) == 1


def test_drop(valkey: Server) -> None:
    bury_all(valkey, ["a", "b"], b"garbage")
    newest = str(listed()[0]["id"])
    done = invoke("dead", "drop", newest, "0-0")
    assert (done.exit_code, done.stdout) == (0, f"{newest}\n0-0\n")
    assert invoke("dead", "drop", "--all", "--json").stdout.count('"dropped":true') == 1
    assert listed() == []


def test_one_that_is_refused_does_not_end_the_others(valkey: Server) -> None:
    bury_all(valkey, ["a"], b"garbage")
    newest = str(listed()[0]["id"])
    done = invoke("dead", "requeue", "0-nobody", newest, "0-0")
    assert done.exit_code == 4
    assert "0-nobody: no dead letter" in done.stderr
    assert "a foreign entry and not a job; it can only be dropped" in done.stderr
    assert done.stdout.startswith("0-0.r")
    again = invoke("dead", "requeue", "0-0", "--json")
    assert (again.exit_code, json.loads(again.stdout)["id"]) == (4, "0-0")
    assert invoke("dead", "show", "0-0").exit_code == 4


@pytest.mark.parametrize("arguments", [("requeue",), ("drop",), ("requeue", "0-1", "--all")])
def test_wrong_arguments(arguments: tuple[str, ...]) -> None:
    done = invoke("dead", *arguments)
    assert done.exit_code == 2
    assert "x" in arguments or "give either ids or --all" in done.stderr


def test_a_server_that_is_away_has_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_REDIS_URL", "redis://127.0.0.1:1/0")
    for arguments in (("list",), ("requeue", "0-a")):
        assert invoke("dead", *arguments).exit_code == 3
