"""A batch run's server and files in a folder of the test's own: run in this process, or by its command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import redis

from millstream import AsyncClient, ClientOptions
from millstream.batch.batch_session import BatchSession
from millstream.batch.files.journal import Journal
from millstream.batch.run.run_options import RunOptions
from millstream.batch.run.tally import Summary
from millstream.wire.keys import QueueKeys
from support.servers.servers import Server
from support.workers.answering_worker import completion, read_rows, write_lines


def documents(count: int) -> list[dict[str, Any]]:
    """Lines of an input: `text 7` is answered by `TEXT 7`."""
    return [completion(f"doc-{i}", f"text {i}") for i in range(count)]


def alike(count: int, groups: int) -> list[dict[str, Any]]:
    """The same behind long beginnings, each of which every `groups`-th line has."""
    heads = [f"document {i}: " + "word " * 300 for i in range(groups)]
    return [completion(f"doc-{i}", f"{heads[i % groups]} text {i}") for i in range(count)]


def capitals(lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The answers to such lines."""
    return {line["custom_id"]: line["body"]["prompt"].upper() for line in lines}


def answers_of(count: int) -> dict[str, str]:
    return {f"doc-{i}": f"TEXT {i}" for i in range(count)}


class BatchFiles:
    """`command` and `cancel` are for `invoke` and `process`, with what else they are given behind them.
    `run` has a client and a journal of the classes `client` and `journal`."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.source = folder / "in.jsonl"
        self.out = folder / "out.jsonl"
        self.errors = folder / "out.errors.jsonl"
        self.run_file = folder / "out.run.jsonl"
        self.client: type[AsyncClient] = AsyncClient
        self.journal: type[Journal] = Journal
        address = ("--redis-url", server.url)
        self.command: tuple[object, ...] = ("batch", "run", self.source, "-o", self.out, *address)
        self.cancel: tuple[object, ...] = ("batch", "cancel", self.out, *address)

    def write(self, *lines: object) -> None:
        write_lines(self.source, lines)

    async def run(self, options: RunOptions | None = None, *, client: ClientOptions | None = None) -> Summary:
        with self.journal(self.out) as journal:
            session = BatchSession(self.source, journal, options or RunOptions())
            session.compare()
            async with self.client(self.server.url, options=client) as connected:
                await session.prepare(connected)
                with session.running(connected) as run:
                    return await run.run()

    def answers(self) -> dict[str, str]:
        rows = read_rows(self.out)
        assert len({row["custom_id"] for row in rows}) == len(rows), "an answer stands there twice"
        return {row["custom_id"]: row["response"]["body"]["choices"][0]["text"] for row in rows}

    def models(self) -> dict[str, str]:
        """The model that each answer names."""
        return {row["custom_id"]: row["response"]["body"]["model"] for row in read_rows(self.out)}

    def noted_models(self) -> list[str]:
        """Those of the run file, in their order."""
        return [row["model"] for row in read_rows(self.run_file) if "model_digest" in row]

    def faults(self) -> list[tuple[int, str, str | None]]:
        errors = [row["error"] for row in read_rows(self.errors)]
        return sorted((error["line"], error["code"], error["param"]) for error in errors)

    def states(self) -> dict[str, str]:
        """Of all jobs that the server has something of, by their ids."""
        with redis.Redis(port=self.server.port, decode_responses=True) as client:
            keys = [key for kind in ("job", "tokens") for key in client.scan_iter(f"*:{kind}:*", count=1000)]
            jobs = {key.split("}:")[1].partition(":")[2]: key.replace("}:tokens:", "}:job:") for key in keys}
            with client.pipeline() as pipeline:
                for key in jobs.values():
                    pipeline.hget(key, "state")
                return dict(zip(jobs, map(str, pipeline.execute()), strict=True))

    def queued(self) -> int:
        """Jobs in the lane, and parked beside it."""
        shard = QueueKeys("default").shard(0)
        with redis.Redis(port=self.server.port) as client:
            return int(client.xlen(shard.lane("batch"))) + int(client.zcard(shard.parked("batch")))
