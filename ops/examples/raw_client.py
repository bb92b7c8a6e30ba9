"""A Millstream client of a language that has none, written in Python: it uses a Redis client, msgpack and the
Lua files, and nothing of the package. The rules that it follows are in ../pages/protocol.md.

    python ops/examples/raw_client.py redis://localhost:6379/0 "Once upon a time"
"""

from __future__ import annotations

import hashlib
import json
import sys
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import redis

LUA = Path(__file__).resolve().parents[2] / "producer/millstream/wire/lua"
Entry = tuple[int, int, bytes, bytes]  # attempt, number, kind, body
TERMINAL = ("completed", "failed", "cancelled", "expired")


def script(name: str, seen: set[str]) -> str:
    """A Lua file with the parts that it includes, each once, and without comment lines."""
    lines = []
    for line in next(LUA.rglob(f"{name}.lua")).read_text("utf-8").splitlines():
        if line.startswith("-- include:"):
            for part in line.removeprefix("-- include:").split(","):
                if (path := f"parts/{part.strip()}") not in seen:
                    seen.add(path)
                    lines.append(script(path, seen))
        elif not line.startswith("--"):
            lines.append(line)
    return "\n".join(lines)


def parse(message: bytes) -> Entry:
    """A published entry: `<attempt>-<number> <kind> <body>`."""
    entry_id, kind, body = message.split(b" ", 2)
    attempt, seq = map(int, entry_id.split(b"-"))
    return attempt, seq, kind, body


def joins(entry: Entry, place: tuple[int, int]) -> bool:
    """Whether a message comes right after `place`: of the same attempt, or a marker of a later one."""
    attempt, seq, kind, _ = entry
    if kind == b"m":
        return attempt > place[0] and seq == place[1]
    return attempt == place[0] and seq == place[1] + 1


IN_VERSION_5 = {
    "bad_words", "allowed_token_ids", "include_stop_str_in_output", "skip_special_tokens",
    "truncate_prompt_tokens", "thinking_token_budget",
}  # fmt: skip


def needs_version_5(sampling: dict[str, Any]) -> bool:
    """Fields, and bounds, that an older worker would ignore or refuse."""
    stop = sampling.get("stop", ())
    wider = sampling.get("n", 1) > 16 or len(stop) > 16 or any(len(text) > 256 for text in stop)
    return wider or not IN_VERSION_5.isdisjoint(sampling)


class RawClient:
    def __init__(self, url: str, queue: str = "default") -> None:
        self.redis = redis.Redis.from_url(url, protocol=2, socket_timeout=5)
        self.queue = queue
        meta = f"{{ms:{queue}}}:meta"
        fields = ("shards", 1, "pubsub", "plain", "version_min", 1, "version_max", 1)
        reply = self.call("open_queue", [meta], fields)
        self.meta = dict(zip(reply[::2], reply[1::2], strict=True))
        assert self.meta[b"pubsub"] == b"plain", "this example does not speak sharded pub/sub"

    def call(self, name: str, keys: list[str], args: Any) -> Any:
        """EVALSHA, and EVAL where the server does not know the script yet."""
        source = script(name, set())
        try:
            return self.redis.evalsha(hashlib.sha1(source.encode()).hexdigest(), len(keys), *keys, *args)
        except redis.exceptions.NoScriptError:
            return self.redis.eval(source, len(keys), *keys, *args)

    def key(self, job_id: str, name: str) -> str:
        return f"{{ms:{self.queue}:{job_id.split('-')[0]}}}:{name}"

    def submit(
        self,
        prompt: str,
        own_id: str | None = None,
        *,
        kind: str = "answer",
        image: bytes | None = None,
        **sampling: Any,
    ) -> str:
        """`image`: the bytes of a PNG or JPEG file; the prompt is a message behind it then."""
        own_id = own_id or uuid.uuid4().hex
        job_id = f"{zlib.crc32(own_id.encode()) % int(self.meta[b'shards'])}-{own_id}"
        canonical = {"messages": None, "prompt": prompt, "sampling": sampling, "token_ids": None}
        request = {"prompt": prompt, "sampling": sampling, "stream": True}
        version, cost = 5 if needs_version_5(sampling) else 1, len(prompt.encode()) // 4
        if image is not None:
            parts = [{"image": 0}, {"text": prompt}]
            del request["prompt"]
            request |= {"messages": [{"role": "user", "parts": parts}], "images": [{"data": image}]}
            shown = [{"image": hashlib.sha256(image).hexdigest()}, {"text": prompt}]
            canonical |= {"messages": [["user", "", {"parts": shown}]], "prompt": None}
            version, cost = 7, cost + 1500
        if kind == "answer":
            cost += sampling.get("max_tokens", 256)
        else:
            version, canonical["kind"] = max(version, 4), kind
            request["kind"] = kind
        request |= {"version": version} if version > 1 else {}
        text = json.dumps(canonical, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        digest = hashlib.sha256(text.encode()).hexdigest()[:32]
        payload = msgpack.packb(request)
        names = [f"job:{job_id}", f"tokens:{job_id}", "delayed", "deadlines", "bytes"]
        for lane in ("batch", "interactive"):  # the job's first
            names += [f"lane:{lane}", f"parked:{lane}", f"tenants:{lane}"]
        args = [job_id, "batch", version, payload, digest, "", "1", "", 100_000, 2**30, "", max(1, cost)]
        outcome, *_ = self.call("submit", [self.key(job_id, name) for name in names], args)
        if outcome in (b"conflict", b"full"):
            raise RuntimeError(f"{job_id}: {outcome.decode()}")
        return job_id

    def stream(self, job_id: str) -> Iterator[str]:
        """The text as it comes. Raises where the server lost writes: start again from an empty text."""
        log, job = self.key(job_id, f"tokens:{job_id}"), self.key(job_id, f"job:{job_id}")
        place = (0, 0)  # attempt and number of the last entry that was read
        with self.redis.pubsub() as pubsub:
            pubsub.subscribe(self.key(job_id, f"events:{job_id}"))
            while (pubsub.get_message(timeout=5) or {}).get("type") != "subscribe":
                pass  # only after the acknowledgement does a read of the log leave no hole
            entries: list[Entry] = []
            while True:
                if not entries:  # at first, after silence, and where a message did not join on
                    state = self.redis.hget(job, "state")
                    entries = self.read_log(log, place)
                    if state is None:
                        raise KeyError(job_id)
                    if not entries and state.decode() in TERMINAL:
                        return  # ended without a log: what there is, is in the result
                for attempt, seq, kind, body in entries:
                    if seq != place[1] + (kind != b"m"):
                        raise RuntimeError(f"{job_id}: the log goes from {place[1]} to {seq}")
                    place = (attempt, seq)
                    if kind == b"e":
                        return
                    if kind == b"d":
                        yield "".join(c.get("text", "") for c in msgpack.unpackb(body).get("choices", ()))
                message = pubsub.get_message(ignore_subscribe_messages=True, timeout=1)
                entries = [parse(message["data"])] if message else []
                if entries and not joins(entries[0], place):
                    entries = []

    def read_log(self, log: str, place: tuple[int, int]) -> list[Entry]:
        """What comes after `place`, whose own entry must still be there."""
        rows = self.redis.xrange(log, f"{place[0]}-{place[1]}")
        entries = [(*map(int, row[0].split(b"-")), row[1][b"k"], row[1][b"b"]) for row in rows]
        if place == (0, 0):
            return entries
        if not entries or entries[0][:2] != place:
            raise RuntimeError(f"{log}: the server lost entry {place[0]}-{place[1]}")
        return entries[1:]

    def result(self, job_id: str) -> dict[str, Any] | None:
        """The Result as a mapping; None until the job has ended. Absent fields have their defaults."""
        state, result = self.redis.hmget(self.key(job_id, f"job:{job_id}"), "state", "result")
        if state is None:
            raise KeyError(job_id)
        if state.decode() not in TERMINAL:
            return None
        return {"state": state.decode()} | (msgpack.unpackb(result) if result else {})

    def count(self, prompt: str) -> int:
        """The prompt's tokens, by a worker that takes version 4; without one this waits."""
        job_id = self.submit(prompt, kind="count")
        for _ in self.stream(job_id):
            pass  # there is only its end
        result = self.result(job_id)
        if result is None or result["state"] != "completed":
            raise RuntimeError(f"{job_id}: {result}")
        return result["usage"]["prompt_tokens"]

    def cancel(self, job_id: str) -> str:
        names = [f"job:{job_id}", f"tokens:{job_id}", "delayed", "deadlines", "bytes"]
        names += ["parked:interactive", "tenants:interactive", "parked:batch", "tenants:batch"]
        channels = [self.key(job_id, f"events:{job_id}"), self.key(job_id, "control")]
        args = [job_id, 86_400_000, "PUBLISH", *channels]
        return self.call("cancel", [self.key(job_id, name) for name in names], args).decode()


def main(url: str, prompt: str) -> None:
    client = RawClient(url)
    job_id = client.submit(prompt, max_tokens=64)
    for text in client.stream(job_id):
        print(text, end="", flush=True)
    print(f"\n{job_id}: {client.result(job_id)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
