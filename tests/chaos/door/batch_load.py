"""Batches, one after the other: each has every line's row once, in its file and in its stream of rows."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from support.batches import ENDED, jsonl, rows_of
from support.workers.word_answers import counted

from chaos.door.door import AGAIN_S, Door
from millstream.gateway.redis.tenant_keys import OPEN_TENANTS

if TYPE_CHECKING:
    from chaos.arena import Arena

LINES = (40, 160)
SETTLED_S = 10.0
URL = "/v1/completions"
Row = dict[str, Any]
BEGINNINGS = (
    "",
    *(f" w{word}" * 300 for word in (10, 20, 30)),
)  # of prompts, which are sent together


class BatchLoad:
    def __init__(self, arena: Arena, door: Door) -> None:
        self._arena = arena
        self._door = door
        self._random = random.Random(f"{arena.seed}/batches")

    async def run(self) -> None:
        while not self._arena.load.stopping:
            lines, wanted = self._draw()
            batch = await self._ended(lines)
            if batch["status"] != "completed" or batch["error_file_id"] is not None:
                self._door.note(f"a batch came to {batch}", "batch")
                continue
            content = await self._ask("GET", f"/v1/files/{batch['output_file_id']}/content")
            streamed = await self._ask("GET", f"/v1/batches/{batch['id']}/results")
            for rows in (rows_of(content.content), rows_of(streamed.content)):
                if fault := _fault(rows, wanted):
                    self._door.note(f"{batch['id']}: {fault}", "batch")
            self._door.tally["rows of batches"] += len(wanted)

    async def judge(self) -> None:
        """Nothing may be left open; an ended batch is taken off its tenant's list."""
        for _ in range(round(SETTLED_S / AGAIN_S)):
            if not await self._arena.admin.zcard(OPEN_TENANTS):
                return
            await asyncio.sleep(AGAIN_S)
        self._door.note("a batch is still open", "batch")

    def _draw(self) -> tuple[list[Row], dict[str, str]]:
        """Lines, and the text of each."""
        lines, wanted = [], {}
        for number in range(self._random.randint(*LINES)):
            first, count = self._random.randrange(500), self._random.randint(1, 8)
            body = {
                "model": self._arena.queue,
                "prompt": f"{self._random.choice(BEGINNINGS)} w{first}",
                "max_tokens": count,
                "temperature": 0,
            }
            lines.append({"custom_id": f"r{number}", "method": "POST", "url": URL, "body": body})
            wanted[f"r{number}"] = counted(first, count).text
        return lines, wanted

    async def _ended(self, lines: list[Row]) -> Row:
        content = b"\n" + jsonl(lines).replace(b"\n", b"\n\n")  # numbers of lines are not those of requests
        upload = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", content)}}
        file = (await self._ask("POST", "/v1/files", **upload)).json()
        asked = {"input_file_id": file["id"], "endpoint": URL, "completion_window": "24h"}
        once = {"Idempotency-Key": uuid4().hex}
        batch: Row = (await self._ask("POST", "/v1/batches", json=asked, headers=once)).json()
        while batch["status"] not in ENDED:
            await asyncio.sleep(AGAIN_S)
            batch = (await self._ask("GET", f"/v1/batches/{batch['id']}")).json()
        return batch

    async def _ask(self, method: str, path: str, **given: Any) -> Any:
        return await self._door.ask(self._random, method, path, **given)


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
