"""Batch runs from a program, with a client of either kind."""

from __future__ import annotations

from pathlib import Path

from support.answering import answering, completion, read_rows, write_lines
from support.servers import Server

from millstream import AsyncClient, Client, batch_run


async def test_a_program_runs_a_file_and_runs_it_again(valkey: Server, tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_lines(source, [completion("a", "one"), completion("b", "please fail")])
    async with AsyncClient(valkey.url) as client:
        with answering(valkey.url):
            first = await batch_run(client, source, str(out), lane="interactive")
        again = await batch_run(client, source, out)
    assert (first.completed, first.failed, first.skipped) == (1, 1, 0)
    assert (again.completed, again.failed, again.skipped) == (0, 0, 2)
    [row] = read_rows(out)
    assert row["response"]["body"]["choices"][0]["text"] == "ONE"


def test_a_program_without_asyncio_does_so_too(valkey: Server, tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_lines(source, [completion("a", "one")])
    with Client(valkey.url) as client, answering(valkey.url):
        summary = client.run(lambda connected: batch_run(connected, source, out))
    assert summary.completed == len(read_rows(out)) == 1
