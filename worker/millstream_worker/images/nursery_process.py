"""The front's end of a nursery and of its children: they are started, asked, and killed. What is made of
their answers and of their deaths, the pool decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

from millstream_worker.images.messages import (
    LENGTH,
    MOST_BYTES,
    NurseryConfig,
    ProcessorFacts,
    packed,
    unpacked,
)
from millstream_worker.images.nursery import COMMAND, FORK, KILL

_ARGV = (sys.executable, "-m", "millstream_worker.images.nursery")
_START_S = 40.0  # importing transformers takes 2 to 20 seconds
_FORK_S = 10.0
_MORE_BYTES = 2**20  # of a message, beside an image's arrays
_PASSED_ON = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR")
_CHOSEN = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}


class NoProcessor(Exception):
    """The images of this checkpoint are not prepared; the message is the reason."""


class ProcessGone(Exception):
    """The process at the other end has ended."""


class ForkedChild:
    """The front's end of one child."""

    def __init__(self, peer: socket.socket, nursery: NurseryProcess) -> None:
        self._peer = peer
        self.nursery = nursery
        self.pid = 0

    async def ask(self, request: Any) -> Any:
        """Raises ProcessGone."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._peer, packed(request))
        except OSError as error:
            raise ProcessGone from error
        return await _received(self._peer)

    async def begin(self) -> None:
        """Raises ProcessGone."""
        self.pid = await _received(self._peer)

    def end(self) -> None:
        self._peer.close()
        self.nursery.kill(self.pid)


class NurseryProcess:
    """Made by `start`."""

    def __init__(self, process: asyncio.subprocess.Process, peer: socket.socket) -> None:
        self._process = process
        self._peer = peer
        self.is_over = False

    @classmethod
    async def start(cls, config: NurseryConfig) -> tuple[NurseryProcess, ProcessorFacts]:
        """Raises NoProcessor for a checkpoint without usable images; ProcessGone, OSError, TimeoutError."""
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
                kind, said = await ForkedChild(ours, nursery).ask(config)
            if kind == "failed":
                raise NoProcessor(said)
            return nursery, ProcessorFacts(*said)
        except BaseException:
            await nursery.end()
            raise

    async def fork(self) -> ForkedChild:
        """Raises ProcessGone, OSError or TimeoutError: this nursery is of no use any more."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        child = ForkedChild(ours, self)
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


def nursery_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns what it needs to find its modules: the rest may hold secrets."""
    return {name: environment[name] for name in _PASSED_ON if name in environment} | _CHOSEN


async def _received(peer: socket.socket) -> Any:
    """Returns the next message. Raises ProcessGone, also for one that is longer than any."""
    [size] = LENGTH.unpack(await _exactly(peer, LENGTH.size))
    if size > MOST_BYTES + _MORE_BYTES:
        raise ProcessGone
    return unpacked(await _exactly(peer, size))


async def _exactly(peer: socket.socket, size: int) -> bytearray:
    loop = asyncio.get_running_loop()
    data = bytearray(size)
    got = 0
    while got < size:
        try:
            read = await loop.sock_recv_into(peer, memoryview(data)[got:])
        except OSError as error:
            raise ProcessGone from error
        if not read:
            raise ProcessGone
        got += read
    return data
