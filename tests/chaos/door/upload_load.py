"""Files that are uploaded, in pieces and again on failure; some of them are deleted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import httpx2

from chaos.door.door import AGAIN_S, Door
from chaos.door.file_checks import file_faults
from chaos.door.upload import PIECE, PURPOSE, Left, Upload

if TYPE_CHECKING:
    from chaos.arena import Arena

CLIENTS = 4
MIB = 1024**2
SIZES = ((1, 3 * MIB), (1, 3 * MIB), (1, 3 * MIB), (9 * MIB, 11 * MIB))  # a store has parts of 8 MiB
TAKES_S = (0.1, 1.5)
PAUSE_S = 0.1
TRIES = 100  # of a client that waits after the end of the load
PAGE = 7  # files of one list


class UploadLoad:
    def __init__(self, arena: Arena, door: Door) -> None:
        self._arena = arena
        self._door = door
        self._uploads: list[Upload] = []
        self._random = random.Random(f"{arena.seed}/lists")

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(self._client(random.Random(f"{self._arena.seed}/uploads {number}")))

    async def judge(self) -> None:
        """What of all the uploads is there, after all were over."""
        listed = await self._list()
        ids = [one["id"] for one in listed]
        if len(ids) != len(set(ids)):
            self._door.note(f"{len(ids) - len(set(ids))} files are listed twice", "file")
        by_name: dict[str, list[Mapping[str, Any]]] = {upload.name: [] for upload in self._uploads}
        for one in listed:
            by_name.setdefault(one["filename"], []).append(one)
        if foreign := by_name.keys() - {upload.name for upload in self._uploads}:
            self._door.note(f"files that nobody has uploaded: {sorted(foreign)}", "file")
        for upload in self._uploads:
            for fault in file_faults(upload, by_name[upload.name]):
                self._door.note(f"{upload.name}: {fault}", "file")
            for one in by_name[upload.name]:
                await self._compare(upload, self._random, one["id"])

    async def _client(self, source: random.Random) -> None:
        while not self._arena.load.stopping:
            upload = self._draw(source)
            self._uploads.append(upload)
            await self._acknowledged(source, upload)
            self._door.tally["uploads acknowledged"] += bool(upload.ids)
            if upload.key is not None and source.random() < 0.3:
                await self._acknowledged(source, upload)
            if upload.ids and source.random() < 0.7:
                await self._delete(source, upload)
            await asyncio.sleep(source.expovariate(1 / PAUSE_S))

    def _draw(self, source: random.Random) -> Upload:
        name, size = f"{source.getrandbits(64):016x}.bin", source.randint(*source.choice(SIZES))
        return Upload(name, size, f"upload {name}" if source.random() < 0.5 else None)

    async def _acknowledged(self, source: random.Random, upload: Upload) -> None:
        """Try until it is."""
        known = len(upload.ids)
        for _ in range(TRIES):
            self._door.tally["uploads tried"] += 1
            await self._try(source, upload)
            if len(upload.ids) > known:
                return
            await asyncio.sleep(AGAIN_S)

    async def _try(self, source: random.Random, upload: Upload) -> None:
        """Perhaps the client goes in the middle, or does not wait for the answer."""
        count = upload.size // PIECE + 1
        left_after = source.randrange(count) if source.random() < 0.15 else None
        patience_s = 0.002 if source.random() < 0.1 else 10.0
        pieces = upload.pieces(source.uniform(*TAKES_S) / count, left_after)
        length = {"Content-Length": str(upload.length)} if source.random() < 0.7 else {}
        try:
            async with self._door.somewhere(source, timeout_s=patience_s) as http:
                answer = await http.post("/v1/files", content=pieces, headers=upload.headers | length)
        except (Left, httpx2.HTTPError):
            return
        if answer.is_success:
            upload.ids.append(answer.json()["id"])
        elif answer.status_code < 500:
            self._door.note(f"{upload.name}: {answer.status_code} {answer.text:.300}", "file")

    async def _delete(self, source: random.Random, upload: Upload) -> None:
        """Once its content was read. Whoever repeats it may be told that it is not there any more."""
        id = upload.ids[-1]
        await self._compare(upload, source, id)
        await self._door.ask(source, "DELETE", f"/v1/files/{id}", allowed=(404,))
        upload.deleted.add(id)
        self._door.tally["files deleted"] += 1

    async def _compare(self, upload: Upload, source: random.Random, id: str) -> None:
        """Byte by byte."""
        answer = await self._door.ask(source, "GET", f"/v1/files/{id}/content", allowed=(404,))
        if not answer.is_success:
            self._door.note(f"{upload.name}: its content is not there", "file")
        elif answer.content != upload.content:
            told = f"{len(answer.content)} bytes that are not its own {upload.size}"
            self._door.note(f"{upload.name}: it has {told}", "file")
        else:
            self._door.tally["files compared"] += 1

    async def _list(self) -> list[Mapping[str, Any]]:
        """All, in pages."""
        found: list[Mapping[str, Any]] = []
        while True:
            after = {"after": found[-1]["id"]} if found else {}
            asked = {"purpose": PURPOSE, "limit": PAGE} | after
            page = (await self._door.ask(self._random, "GET", "/v1/files", params=asked)).json()
            found += page["data"]
            if not page["has_more"]:
                return found
