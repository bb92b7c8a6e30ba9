"""The worker's side of the processes that prepare its images: a nursery, and a child of it for each image.

A child that dies, or takes too long and is killed, costs its image one try of two; the death of the nursery,
which takes all children along, costs none. The nursery is started again then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgpack.exceptions import UnpackException

from millstream_worker.images.messages import (
    LENGTH,
    MOST_BYTES,
    BadImage,
    ImageData,
    NurseryConfig,
    Probe,
    ProcessorFacts,
    bad_image,
    image_data,
    packed,
    probe,
    unpacked,
)
from millstream_worker.images.nursery import COMMAND, FORK, KILL

_ARGV = (sys.executable, "-m", "millstream_worker.images.nursery")
_START_S = 40.0  # importing transformers takes 2 to 20 seconds
_STARTS = 3  # tries to start the first nursery: without one, no image of this model is read
_FORK_S = 10.0
_PAUSE_S = 0.1  # between two tries to get a child; doubled each time
_LONGEST_PAUSE_S = 10.0
_MOST_GONE = 5  # children in a row that end at once, after which their nursery is replaced
_TRIES = 2  # of an image
_MORE_BYTES = 2**20  # of a message, beside an image's arrays
_DIED, _SLOW = "died", "slow"
_PASSED_ON = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR")
_CHOSEN = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}


class NoPool(Exception):
    """The images of this checkpoint are not prepared; the message is the reason."""


class _Gone(Exception):
    """The process at the other end has ended."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Bounds of one image."""

    timeout_s: float
    most_pixels: int


class _Child:
    """The front's end of one child."""

    def __init__(self, peer: socket.socket, nursery: _Nursery) -> None:
        self._peer = peer
        self.nursery = nursery
        self.pid = 0

    async def ask(self, *request: Any) -> Any:
        """Raises _Gone."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._peer, packed(request))
        except OSError as error:
            raise _Gone from error
        return await _received(self._peer)

    async def begin(self) -> None:
        """Raises _Gone."""
        self.pid = await _received(self._peer)

    def end(self) -> None:
        self._peer.close()
        self.nursery.kill(self.pid)


class _Nursery:
    """Made by `start`."""

    def __init__(self, process: asyncio.subprocess.Process, peer: socket.socket) -> None:
        self._process = process
        self._peer = peer
        self.is_over = False

    @classmethod
    async def start(cls, config: NurseryConfig) -> tuple[_Nursery, ProcessorFacts]:
        """Raises NoPool, for a checkpoint without usable images; _Gone, OSError and TimeoutError."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    *_ARGV,
                    "--fd",
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,  # decoders write about the files that they read
                    start_new_session=True,
                    env=nursery_environment(os.environ),
                )
            except BaseException:  # also cancelled
                ours.close()
                raise
        nursery = cls(process, ours)
        try:
            async with asyncio.timeout(_START_S):
                kind, said = await _Child(ours, nursery).ask(*_plain(config))
            if kind == "failed":
                raise NoPool(said)
            return nursery, ProcessorFacts(*said)
        except BaseException:
            await nursery.end()
            raise

    async def fork(self) -> _Child:
        """Raises _Gone, OSError or TimeoutError: this nursery is of no use any more."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        child = _Child(ours, self)
        try:
            with theirs:
                socket.send_fds(self._peer, [COMMAND.pack(FORK, 0)], [theirs.fileno()])
            async with asyncio.timeout(_FORK_S):
                await child.begin()
        except BaseException:
            ours.close()
            raise
        return child

    def kill(self, pid: int) -> None:
        """A child; where the nursery is gone, or does not read, all of them."""
        if not pid or self.is_over:
            return
        try:
            self._peer.send(COMMAND.pack(KILL, pid))
        except OSError:
            self.kill_all()

    def kill_all(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def end(self) -> None:
        self.kill_all()
        self._peer.close()
        await self._process.wait()


@dataclass(slots=True, eq=False)
class ImagePool:
    """`died` is called for each child that died or was killed over its image; `size`: number of images that
    are prepared at a time.
    """

    limits: PoolLimits
    options: str = ""  # of the image processor, as JSON
    died: Callable[[], None] = lambda: None
    size: int = 1
    _folder: str = ""
    _nursery: _Nursery | None = None
    _facts: ProcessorFacts | None = None
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def pids(self) -> list[int]:
        """Returns the nursery's process id, if there is one."""
        return [self._nursery.pid] if self._nursery is not None and not self._nursery.is_over else []

    async def open(self, folder: str) -> ProcessorFacts:
        """Load a checkpoint's processor, unless it is loaded. Raises NoPool."""
        if folder != self._folder or self._facts is None:
            await self.close()
            self._folder = folder
            await self._start()
        assert self._facts is not None, "a nursery tells them before it forks"
        return self._facts

    async def _start(self) -> None:
        """A nursery that dies in its start may have been killed for others' sake, as for memory."""
        for left in reversed(range(_STARTS)):
            try:
                await self._running()
                return
            except (_Gone, OSError, TimeoutError) as error:
                if not left:
                    raise NoPool(f"its image processor cannot be loaded: {type(error).__name__}") from error
                await asyncio.sleep(_PAUSE_S)

    async def close(self) -> None:
        nursery, self._nursery, self._facts = self._nursery, None, None
        if nursery is not None:
            await nursery.end()

    async def prepare(self, data: bytes) -> ImageData:
        """Raises BadImage."""
        made: ImageData = await self._ask(image_data, "image", data)
        return made

    async def probe(self, text: str) -> Probe:
        """Returns what the processor makes of a rendered conversation with two images. Raises BadImage."""
        made: Probe = await self._ask(probe, "probe", text)
        return made

    async def _ask(self, read: Callable[[Any], Any], *request: Any) -> Any:
        ends: list[str] = []
        child = await self._fork()
        while len(ends) < _TRIES:
            answer = await self._tried(child, read, request)
            if not isinstance(answer, str):
                return answer
            before, child = child, await self._fork()
            if child.nursery is before.nursery:  # which lives, so that this was the image
                ends.append(answer)
                self.died()
        child.end()
        raise self._died_on_it(ends)

    async def _tried(self, child: _Child, read: Callable[[Any], Any], request: Sequence[Any]) -> Any:
        """Returns its answer, or the way it ended: with what is no answer, perhaps. Raises BadImage."""
        try:
            async with asyncio.timeout(self.limits.timeout_s):
                return read(_said(*await child.ask(*request)))
        except (_Gone, ValueError, TypeError, LookupError, UnpackException):
            return _DIED
        except TimeoutError:
            return _SLOW
        finally:
            child.end()

    def _died_on_it(self, ends: list[str]) -> BadImage:
        if _DIED in ends:
            return BadImage("died", "cannot be read: the image decoder died on it twice; save it again")
        return BadImage(
            "time",
            f"was not prepared within {self.limits.timeout_s:g} s, twice (the worker's "
            "MILLSTREAM_IMAGE_TIMEOUT_S); scale it down",
        )

    async def _fork(self) -> _Child:
        """From the next nursery, where this one does not work."""
        failures = 0
        while True:
            with contextlib.suppress(_Gone, OSError, TimeoutError, NoPool):
                nursery = await self._running()
                try:
                    return await nursery.fork()
                except _Gone:  # no memory for another process, perhaps
                    if failures % _MOST_GONE == _MOST_GONE - 1:
                        nursery.kill_all()
                except (OSError, TimeoutError):
                    nursery.kill_all()
            await asyncio.sleep(min(_PAUSE_S * 2**failures, _LONGEST_PAUSE_S))
            failures += 1

    async def _running(self) -> _Nursery:
        async with self._starting:
            if self._nursery is not None and self._nursery.is_over:
                before, self._nursery = self._nursery, None
                await before.end()
            if self._nursery is None:
                limits = self.limits
                config = NurseryConfig(self._folder, self.options, limits.most_pixels, limits.timeout_s)
                self._nursery, self._facts = await _Nursery.start(config)
            return self._nursery


def nursery_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns what it needs to find its modules: the rest may hold secrets."""
    return {name: environment[name] for name in _PASSED_ON if name in environment} | _CHOSEN


def _said(kind: str, *said: Any) -> Any:
    """Raises BadImage; ValueError and others for what a child does not say."""
    if kind == "bad":
        reason, problem = said
        raise BadImage(*bad_image(reason, problem))
    return said[0]


def _plain(config: NurseryConfig) -> tuple[Any, ...]:
    return config.folder, config.options, config.most_pixels, config.timeout_s


async def _received(peer: socket.socket) -> Any:
    """Returns the next message. Raises _Gone, also for one that is longer than any."""
    [size] = LENGTH.unpack(await _exactly(peer, LENGTH.size))
    if size > MOST_BYTES + _MORE_BYTES:
        raise _Gone
    return unpacked(await _exactly(peer, size))


async def _exactly(peer: socket.socket, size: int) -> bytearray:
    loop = asyncio.get_running_loop()
    data = bytearray(size)
    got = 0
    while got < size:
        try:
            read = await loop.sock_recv_into(peer, memoryview(data)[got:])
        except OSError as error:
            raise _Gone from error
        if not read:
            raise _Gone
        got += read
    return data
