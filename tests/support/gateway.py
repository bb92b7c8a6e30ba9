"""A gateway as a process of its own, and OpenAI's client of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import openai

from millstream.gateway.gateway_settings import GatewaySettings
from millstream.gateway.server import serve
from support.commands import environment, invoke
from support.servers.servers import Server

LISTENS = r'"gateway listens".*"http://(.*?):(\d+)"'
HELLO = [{"role": "user", "content": "hello"}]


class Gateway:
    """`python -m millstream gateway`, on any free port; its store of files is its own unless one is given.
    `keyless`: with `--open`; `module`: what runs it, and what comes before; `changes`: of its environment.
    `lines`: of its log.
    """

    def __init__(
        self,
        redis_url: str,
        *arguments: object,
        keyless: bool = True,
        module: Sequence[str] = ("millstream",),
        **changes: object,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", *module, "gateway", "--redis-url", redis_url, "--port", "0"),
                *("--files-url", self._folder.name, *["--open"] * keyless, *map(str, arguments)),
            ],
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**changes),
            start_new_session=True,
        )
        assert self.process.stderr is not None
        self.lines: list[str] = []
        found = None
        while found is None:
            self.lines.append(self.process.stderr.readline())
            found = re.search(LISTENS, self.lines[-1])
            if not self.lines[-1]:
                self.process.wait(timeout=15)
                raise AssertionError("".join(self.lines))
        self.host, self.port = found[1], int(found[2])
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr or ()))
        self._reader.start()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def client(self, key: str = "nobody's", *, retries: int = 0, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=retries, **options)

    def shows_ready(self, wanted: bool) -> bool:
        """Whether a worker serves one of its queues, or none does, as it tells callers without a key."""
        page = self.get("/v1/models")
        assert b" 200 " in page
        return (b'"ready":true' in page) is wanted

    @property
    def folder(self) -> Path:
        """Of its files."""
        return Path(self._folder.name)

    def most_memory(self) -> int:
        """Resident, until now, in bytes."""
        [line] = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        return int(line) * 1024

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=30)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(timeout=15)
        self._reader.join(timeout=15)
        assert self.process.stderr is not None
        self.process.stderr.close()
        self._folder.cleanup()

    def get(self, path: str) -> bytes:
        """The answer, with its head."""
        return self.raw(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())

    def raw(self, data: bytes) -> bytes:
        """What it sends before it closes, or stops sending for a second."""
        with socket.create_connection((self.host, self.port), timeout=5) as connection:
            connection.sendall(data)
            connection.settimeout(1)
            got = b""
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                while part := connection.recv(65_536):
                    got += part
            return got


@contextlib.contextmanager
def gateway(redis_url: str, *arguments: object, keyless: bool = True) -> Iterator[Gateway]:
    made = Gateway(redis_url, *arguments, keyless=keyless)
    try:
        yield made
    finally:
        made.close()


@contextlib.asynccontextmanager
async def gateway_within(redis_url: str, **settings: Any) -> AsyncIterator[tuple[str, int]]:
    """A gateway in the loop of the test, on an address of its own: the test can measure the loop, and change
    the bounds that have no setting.
    """
    said: asyncio.Queue[str] = asyncio.Queue()
    with tempfile.TemporaryDirectory() as folder:
        own: dict[str, Any] = {"redis_url": redis_url, "port": 0, "files_url": folder, "grace_s": 0}
        own["open"] = True
        serving = asyncio.create_task(serve(GatewaySettings(**own | settings), said.put_nowait))
        address = asyncio.create_task(said.get())
        await asyncio.wait({serving, address}, return_when=asyncio.FIRST_COMPLETED)
        try:
            found = re.search(r"http://(.*):(\d+)", address.result() if address.done() else "")
            if found is not None:
                yield found[1], int(found[2])
        finally:
            address.cancel()
            if not serving.done():
                signal.raise_signal(signal.SIGTERM)
            await serving
            # It puts back the handler of the runner in which it began: a fixture's has ended since.
            signal.signal(signal.SIGINT, signal.default_int_handler)


def add_key(server: Server, tenant: str, *options: object) -> str:
    """By the command. A worker of this process may write beside it."""
    done = invoke("keys", "add", tenant, *options, "--redis-url", server.url)
    [key] = re.findall(r"ms-[\w-]{43}", done.stdout)
    return str(key)


def api_error(error: openai.APIStatusError) -> dict[str, Any]:
    """Its four fields; nothing else stands in the body."""
    body = json.loads(error.response.text)
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]


async def is_served(client: openai.AsyncOpenAI, model: str) -> bool:
    """Returns whether the gateway knows a worker with the model: it looks for them once a second."""
    try:
        return (await client.models.retrieve(model)).id == model
    except openai.NotFoundError:
        return False
