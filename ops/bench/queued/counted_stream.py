"""A streamed completion over HTTP whose events are counted, and not parsed: a reader that costs little.

    python -m ops.bench.queued.counted_stream PORT STREAMS MAX_TOKENS

opens so many and says when all have begun; then each line of standard input is answered with the events
until now, the streams that have not ended, and the CPU seconds of this process. It ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time

HOST = "127.0.0.1"
OPENING = 256  # at once: the gateway's backlog holds them
_EVENT, _DONE, _ERROR = b"\ndata: ", b"[DONE]", b'{"err'
_KEPT = (
    len(_EVENT) - 1
)  # bytes of what came before, where a sign may have begun; no sign fits into them twice
_OWN_FILES = 64


class StreamFailed(Exception):
    """The gateway refused the request, or ended its stream with an error."""


class CountedStream(asyncio.Protocol):
    """`begun`: its status has come; `first`: its first event; `ended`: its last."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.events = 0
        self.begun: asyncio.Future[None] = loop.create_future()
        self.first: asyncio.Future[float] = loop.create_future()  # of time.perf_counter
        self.ended: asyncio.Future[None] = loop.create_future()
        self._left = b""
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, port: int) -> CountedStream:
        _, stream = await asyncio.get_running_loop().create_connection(cls, HOST, port)
        return stream

    def ask(self, max_tokens: int) -> None:
        assert self._transport is not None, "it is connected"
        self._transport.write(request_bytes(max_tokens))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self.begun.done():
            self._begin(data)
        seen = self._left + data
        if found := seen.count(_EVENT):
            self.events += found
            if not self.first.done():
                self.first.set_result(time.perf_counter())
        if _ERROR in seen:
            self._fail(seen)
        if _DONE in seen and not self.ended.done():
            self.ended.set_result(None)
        self._left = seen[-_KEPT:]

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(str(error or "the connection was closed").encode())

    def _begin(self, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1 200 "):
            self.begun.set_result(None)
        else:
            self._fail(data)

    def _fail(self, what: bytes) -> None:
        for future in (self.begun, self.first, self.ended):
            if not future.done():
                future.set_exception(StreamFailed(what[:300].decode(errors="replace")))
                future.exception()  # whoever waits for it is told


def request_bytes(max_tokens: int) -> bytes:
    body = json.dumps({"prompt": "w1", "max_tokens": max_tokens, "ignore_eos": True, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def main(port: int, count: int, max_tokens: int) -> None:
    _need_files(count + _OWN_FILES)
    opening = asyncio.Semaphore(OPENING)

    async def opened() -> CountedStream:
        async with opening:
            stream = await CountedStream.connect(port)
            stream.ask(max_tokens)
            await stream.begun
            return stream

    streams = await asyncio.gather(*(opened() for _ in range(count)))
    print(json.dumps({"opened": count}), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        events, going = sum(one.events for one in streams), sum(not one.ended.done() for one in streams)
        print(json.dumps({"events": events, "going": going, "cpu_s": time.process_time()}), flush=True)
    for stream in streams:
        stream.close()


def _need_files(count: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < count:
        sys.exit(f"{count} file descriptors are needed, and {most} allowed; raise them: ulimit -n {count}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (count if most == resource.RLIM_INFINITY else most, most))


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
