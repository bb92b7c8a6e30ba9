"""Gateways of an arena, and the batches that go through them: whichever of them is there carries them out."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import httpx2
from support.batches import ENDED, jsonl, rows_of
from support.gateway import Gateway
from support.servers.servers import free_port
from support.workers.word_answers import counted

from millstream.wire.tenant_keys import OPEN_BATCHES

if TYPE_CHECKING:
    from chaos.arena import Arena

LEASE_S = 1.0
LINES = (40, 160)
URL = "/v1/completions"
AGAIN_S = 0.1
SETTLED_S = 10.0
Row = dict[str, Any]


class LoggedGateway(Gateway):
    """Its log is read, so that it is never kept from writing."""

    def __init__(self, url: str, *arguments: object) -> None:
        super().__init__(url, *arguments)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines += self.process.stderr

    def close(self) -> None:
        self.process.kill()
        self._reader.join(timeout=15)
        super().close()


class Gateways:
    """Each has a port of its own, also after its replacement. Batches follow one after the other until the
    load is over. What is wrong with one is a note in the ledger.
    """

    def __init__(self, arena: Arena, count: int) -> None:
        self.rows = 0  # of batches that have ended
        self._arena = arena
        self._random = random.Random(f"{arena.seed}/batches")
        self._ports = [free_port() for _ in range(count)]
        self._running: list[LoggedGateway] = []

    async def __aenter__(self) -> Self:
        try:
            for port in self._ports:
                self._running.append(await self._start(port))
        except BaseException:
            await self.__aexit__()
            raise
        self._arena.load.spawn(self._order_batches())
        return self

    async def __aexit__(self, *error: object) -> None:
        for one in self._running:
            await asyncio.to_thread(one.close)
        self._running.clear()

    async def drain(self) -> None:
        """Nothing may be left open; an ended batch is taken off the list when its parts are deleted."""
        for _ in range(round(SETTLED_S / AGAIN_S)):
            if not await self._arena.admin.zcard(OPEN_BATCHES):
                break
            await asyncio.sleep(AGAIN_S)
        for place in range(len(self._running)):
            await self._end(place)
        if await self._arena.admin.zcard(OPEN_BATCHES):
            self._arena.ledger.note("a batch is still open")
        if not self.rows:
            self._arena.ledger.note("no batch has ended")

    async def kill(self, place: int) -> None:
        await asyncio.to_thread(self._running[place].close)
        self._running[place] = await self._start(self._ports[place])

    async def freeze(self, place: int, seconds: float) -> None:
        """Another takes its batches over, and then it goes on as if nothing had been."""
        process = self._running[place].process
        process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            process.send_signal(signal.SIGCONT)

    async def replace(self, place: int) -> None:
        """SIGTERM, as a deployment does."""
        await self._end(place)
        await self.kill(place)

    async def _end(self, place: int) -> None:
        status = await asyncio.to_thread(self._running[place].stop)
        if status != 0:
            lines = "".join(self._running[place].lines[-20:])
            self._arena.ledger.note(f"a gateway ended with {status} after SIGTERM: {lines}")

    async def _start(self, port: int) -> LoggedGateway:
        arguments = ("--queue", self._arena.queue, "--port", port, "--grace-s", 1)
        files = ("--files-url", self._arena.folder / "files", "--batch-lease-s", LEASE_S)
        return await asyncio.to_thread(LoggedGateway, self._arena.url, *arguments, *files)

    async def _order_batches(self) -> None:
        while not self._arena.load.stopping:
            lines, wanted = self._draw()
            batch = await self._ended(lines)
            if batch["status"] != "completed" or batch["error_file_id"] is not None:
                self._arena.ledger.note(f"a batch came to {batch}")
                continue
            content = await self._ask("GET", f"/v1/files/{batch['output_file_id']}/content")
            streamed = await self._ask("GET", f"/v1/batches/{batch['id']}/results")
            for rows in (rows_of(content.content), rows_of(streamed.content)):
                if fault := _fault(rows, wanted):
                    self._arena.ledger.note(f"{batch['id']}: {fault}")
            self.rows += len(wanted)

    def _draw(self) -> tuple[list[Row], dict[str, str]]:
        """Lines, and the text of each."""
        lines, wanted = [], {}
        for number in range(self._random.randint(*LINES)):
            first, count = self._random.randrange(500), self._random.randint(1, 8)
            body = {
                "model": self._arena.queue,
                "prompt": f" w{first}",
                "max_tokens": count,
                "temperature": 0,
            }
            lines.append({"custom_id": f"r{number}", "method": "POST", "url": URL, "body": body})
            wanted[f"r{number}"] = counted(first, count).text
        return lines, wanted

    async def _ended(self, lines: list[Row]) -> Row:
        upload = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", jsonl(lines))}}
        file = (await self._ask("POST", "/v1/files", **upload)).json()
        asked = {"input_file_id": file["id"], "endpoint": URL, "completion_window": "24h"}
        once = {"Idempotency-Key": uuid4().hex}
        batch: Row = (await self._ask("POST", "/v1/batches", json=asked, headers=once)).json()
        while batch["status"] not in ENDED:
            await asyncio.sleep(AGAIN_S)
            batch = (await self._ask("GET", f"/v1/batches/{batch['id']}")).json()
        return batch

    async def _ask(self, method: str, path: str, **given: Any) -> httpx2.Response:
        """Any gateway, until one answers."""
        while True:
            url = f"http://127.0.0.1:{self._random.choice(self._ports)}"
            try:
                async with httpx2.AsyncClient(base_url=url, timeout=5) as http:
                    answer = await http.request(method, path, **given)
                if answer.is_success:
                    return answer
                if answer.status_code < 500:
                    raise AssertionError(f"{method} {path}: {answer.status_code} {answer.text:.300}")
            except httpx2.HTTPError:
                pass
            await asyncio.sleep(AGAIN_S)


def _fault(rows: list[Row], wanted: dict[str, str]) -> str:
    """What is wrong with them; empty: nothing."""
    names = [row["custom_id"] for row in rows]
    texts = {row["custom_id"]: row["response"]["body"]["choices"][0]["text"] for row in rows}
    if len(names) != len(set(names)):
        return f"{len(names) - len(set(names))} rows stand twice"
    if lost := wanted.keys() - texts.keys():
        return f"{len(lost)} rows are lost"
    wrong = [name for name, text in texts.items() if text.split() != wanted[name].split()]
    return f"{len(wrong)} rows are wrong: {texts[wrong[0]]!r}" if wrong else ""
