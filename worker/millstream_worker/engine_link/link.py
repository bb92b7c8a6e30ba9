"""One running engine process, as the front sees it: frames to it, frames from it, and how it ended.

The engine has the other end of a socket pair, and its own session, so that Ctrl-C on the terminal reaches
only the front. When the front dies, in whatever way, the engine reads the end of the stream and exits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.frames import (
    Abort,
    Add,
    BadFrame,
    Beat,
    Configure,
    DropImage,
    Frame,
    FrameBuffer,
    HoldImage,
    LastWords,
    Stop,
    encode,
)
from millstream_worker.engine.protocol.request import EngineRequest

_READ_BYTES = 1 << 18
_KEPT_MEMORY = {  # bytes; the first is the largest value that every glibc accepts
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
}
_UNREAD_BYTES = 1 << 22  # beyond that the front stops reading from the socket
_JOINED_BYTES = 16 * 1024  # written together at most, and one frame
_UNSENT_BYTES = 1 << 22  # beyond that `writable` waits
LOOK_S = 0.5
_EXIT_S = 5.0  # between the end of its stream and the end of the process


@dataclass(frozen=True, slots=True)
class Silence:
    """No frame, not even a beat, has come from the engine for `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Exit:
    """How an engine process ended. `code` is None if `signal` ended it, which may have been ours."""

    code: int | None
    signal: int | None
    last_beat: Beat | None

    def __str__(self) -> str:
        how = f"signal {self.signal}" if self.code is None else f"exit status {self.code}"
        return f"{how}, last seen in phase {self.last_beat.phase}" if self.last_beat else how


class EngineLink:
    """Made by `start`. `frames()` is read by one task; `send` may be called from anywhere on the loop."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self.last_beat: Beat | None = None
        self._joined = bytearray()  # frames of this turn of the loop
        self._started_at = time.monotonic()

    @classmethod
    async def start(cls, argv: Sequence[str], config: EngineConfig) -> EngineLink:
        """Start `argv` with `--fd N`, and send its configuration. Raises OSError if it cannot be started."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    "--fd",
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                    env=engine_environment(os.environ, config.threads),
                )
            except BaseException:  # also cancelled
                ours.close()
                raise
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=_UNREAD_BYTES)
        writer.transport.set_write_buffer_limits(high=_UNSENT_BYTES)
        link = cls(process, reader, writer)
        link.send(Configure(config))
        return link

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._started_at

    def send(self, frame: Frame) -> None:
        """Queue a frame. After the engine's death it is discarded; the next engine gets its jobs again.

        Frames of one turn of the loop are written together: an idle engine starts with all of them.
        """
        if not self._joined:
            asyncio.get_running_loop().call_soon(self._write)
        self._joined += encode(frame)
        if len(self._joined) > _JOINED_BYTES:
            self._write()

    def _write(self) -> None:
        if self._joined and not self._writer.is_closing():
            self._writer.write(bytes(self._joined))
        self._joined.clear()

    async def writable(self, wait_s: float) -> bool:
        """Wait while the engine is far behind in reading; False if it still is after `wait_s`."""
        try:
            async with asyncio.timeout(wait_s):
                await self._writer.drain()
        except ConnectionError:  # it is dead: its jobs go to the next one
            return True
        except TimeoutError:
            return False
        return True

    async def frames(self) -> AsyncIterator[Frame | Silence]:
        """The engine's frames until its stream ends; beats are kept in `last_beat` and passed on as well.

        An engine that sends an invalid frame is killed, which ends them, too.

        While nothing comes, a Silence each `LOOK_S`. It is counted in looks, not by the clock: if this
        process was suspended itself, it says nothing about the engine.
        """
        buffer = FrameBuffer()
        looks = 0
        while (data := await self._read()) != b"":
            if data is None:
                looks += 1
                yield Silence(looks * LOOK_S)
                continue
            looks = 0
            try:
                for frame in buffer.feed(data):
                    if isinstance(frame, Beat):
                        self.last_beat = frame
                    yield frame
            except BadFrame as error:  # its stream is not valid any more
                yield LastWords(str(error))
                self.kill()
                return

    async def stop(self, grace_s: float) -> Exit:
        """Stop the engine; kill it after `grace_s`."""
        self.send(Stop())
        return await self.reap(grace_s)

    async def reap(self, grace_s: float = _EXIT_S) -> Exit:
        """After the end of `frames()`: wait for the process to exit; kill it if it does not."""
        try:
            async with asyncio.timeout(grace_s):  # wait_for may swallow a cancellation (Python 3.11)
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        status = self._process.returncode
        assert status is not None, "wait() has returned"
        code, number = (None, -status) if status < 0 else (status, None)
        return Exit(code, number, self.last_beat)

    def abandon(self) -> None:
        """Kill it, without waiting."""
        self.kill()
        self._writer.transport.abort()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def _read(self) -> bytes | None:
        """The bytes that have come; empty at the end of the stream, None if nothing came for `LOOK_S`."""
        try:
            async with asyncio.timeout(LOOK_S):
                return await self._reader.read(_READ_BYTES)
        except TimeoutError:
            return None
        except ConnectionError:
            return b""


def engine_environment(environment: Mapping[str, str], threads: int) -> dict[str, str]:
    """The engine's environment, with defaults for its threads' waiting and its memory; existing values win.
    OpenMP and glibc read these when the process starts, so they have to be set before.

    Threads that spin on between two parallel regions take the cores from everybody else; threads that sleep
    at once pay a wake-up for every operation. A replayed step is one region, whose threads look for work of
    their own (`native/src/pieces.h`); this is for prompts, models that are not compiled, and between two
    steps. Measured with two threads on two cores, output tokens/s of a 135M shape before there were such
    steps: no spinning 433, 5,000 turns 630, OpenMP's own policy 510, 20,000 turns 5 % more than 5,000.
    glibc returns the large tensors of a step to the kernel, and gets them again one page fault at a time:
    with memory kept, 32 rows decoded 1.18 times as fast, long prompts 1.09.
    """
    waiting = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "GOMP_SPINCOUNT": "20000"}
    chosen = {"OMP_NUM_THREADS": str(threads)} if threads else {}
    return waiting | _KEPT_MEMORY | dict(environment) | chosen


class EnginePort:
    """The supervisor plugs a ready engine in and unplugs a dead one."""

    def __init__(self) -> None:
        self._link: EngineLink | None = None

    @property
    def up(self) -> bool:
        return self._link is not None

    def plug(self, link: EngineLink) -> None:
        self._link = link

    def unplug(self) -> None:
        self._link = None

    def add(self, request: EngineRequest) -> None:
        if self._link is not None:
            self._link.send(Add(request))

    def hold(self, image: HoldImage) -> None:
        if self._link is not None:
            self._link.send(image)

    def drop(self, image: DropImage) -> None:
        if self._link is not None:
            self._link.send(image)

    def abort(self, handles: Sequence[int]) -> None:
        if self._link is not None and handles:
            self._link.send(Abort(tuple(handles)))

    async def writable(self, wait_s: float) -> bool:
        """Wait while the engine is far behind in reading; False if it still is after `wait_s`."""
        return self._link is None or await self._link.writable(wait_s)
