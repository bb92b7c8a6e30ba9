"""What producers and workers of release 0.1.0 send: its scripts, as they were released, with its arguments.
The files under `released_0_1_0` are never changed: old processes will go on sending them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from millstream.wire.calls import Call, run
from millstream.wire.keys import LANES
from millstream.wire.scripts import Script
from support.desk import TTL_MS, Desk, Held

FOLDER = Path(__file__).parent / "released_0_1_0"


def source(path: str, seen: set[str]) -> str:
    lines = []
    for line in (FOLDER / path).read_text("utf-8").splitlines():
        if line.startswith("-- include:"):
            parts = [part.strip() for part in line.removeprefix("-- include:").split(",")]
            new = [part for part in parts if part not in seen]
            seen.update(new)
            lines += [source(f"parts/{part}.lua", seen) for part in new]
        elif not line.startswith("--"):
            lines.append(line)
    return "\n".join(lines)


class Released:
    """One shard, as 0.1.0 sees it. Every method sends one call and answers what the server did."""

    def __init__(self, desk: Desk) -> None:
        self.redis = desk.redis
        self.keys = desk.keys
        self.lane = str(desk.lane)

    async def send(self, name: str, keys: tuple[str, ...], *args: Any) -> Any:
        text = source(f"{name}.lua", set())
        script = Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
        return await run(self.redis, Call(script, keys, args, lambda reply: reply))

    @property
    def lane_key(self) -> str:
        return self.keys.lane(self.lane)

    async def describe(self, **fields: Any) -> dict[bytes, bytes]:
        pairs = [part for pair in fields.items() for part in pair]
        reply = await self.send("describe", ("{ms:docs}:meta",), *pairs)
        return dict(zip(reply[::2], reply[1::2], strict=True))

    async def submit(self, job_id: str) -> None:
        keys = (*self.keys.ending(job_id), self.keys.lane("batch"), self.keys.lane("interactive"))
        args = (job_id, "batch", 1, b"request", "d1", "", "1", "", 100, 10_000)
        assert (await self.send("submit", keys, *args))[0] == b"accepted"

    async def start(self, job_id: str, entry_id: str, owner: str) -> Held:
        keys = (self.keys.job(job_id), self.keys.tokens(job_id), self.lane_key)
        channel = self.keys.events(job_id)
        reply = await self.send("start", keys, entry_id, owner, f"nonce-{owner}", "PUBLISH", channel)
        attempt, _, _, _, _, _, _ = reply
        return Held(job_id, entry_id, owner, attempt)

    async def append(self, held: Held, seq: int) -> str:
        keys = (self.keys.job(held.job_id), self.keys.tokens(held.job_id))
        args = (
            held.attempt,
            held.owner,
            held.entry_id,
            seq,
            b"delta",
            "PUBLISH",
            self.keys.events(held.job_id),
        )
        outcome: bytes = (await self.send("append", keys, *args))[0]
        return outcome.decode()

    async def finish(self, held: Held, seq: int) -> str:
        keys = (*self.keys.ending(held.job_id), self.lane_key)
        args = (
            held.job_id, held.attempt, held.owner, held.entry_id, "completed", b"result", seq, "", b"",
            TTL_MS, "PUBLISH", self.keys.events(held.job_id),
        )  # fmt: skip
        outcome: bytes = await self.send("finish", keys, *args)
        return outcome.decode()

    async def retry(self, held: Held) -> str:
        keys = (self.keys.job(held.job_id), self.lane_key, self.keys.delayed)
        args = (held.job_id, held.attempt, held.owner, held.entry_id, 0, "1")
        outcome: bytes = await self.send("retry", keys, *args)
        return outcome.decode()

    async def release(self, held: Held) -> str:
        keys = (self.keys.job(held.job_id), self.lane_key)
        args = (held.job_id, held.attempt, held.owner, held.entry_id, "PUBLISH", self.keys.control)
        outcome: bytes = await self.send("release", keys, *args)
        return outcome.decode()

    async def reclaim(self, entry_id: str, seen: str, owner: str) -> str:
        reply = await self.send("reclaim", (self.lane_key, self.keys.job("")), owner, 0, "1", entry_id, seen)
        ((taken, _, _),) = reply
        assert isinstance(taken, bytes)
        return taken.decode()

    async def promote(self) -> None:
        await self.send("promote", (self.keys.delayed, self.keys.job(""), *self.keys.lanes), 100, *LANES)

    async def renew(self, held: Held) -> Any:
        keys = (self.lane_key, self.keys.job(held.job_id))
        return await self.send("renew", keys, held.owner, held.job_id, held.entry_id)

    async def cancel(self, job_id: str) -> str:
        keys = self.keys.ending(job_id)
        args = (job_id, TTL_MS, "PUBLISH", self.keys.events(job_id), self.keys.control)
        outcome: bytes = await self.send("cancel", keys, *args)
        return outcome.decode()
