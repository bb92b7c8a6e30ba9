"""Gateways of an arena, the loads that go through them, and their end: whichever of them is there answers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

from support.commands import BESIDE
from support.gateway import Gateway
from support.servers.servers import free_port

from chaos.door.answer_load import AnswerLoad
from chaos.door.batch_load import BatchLoad
from chaos.door.door import Door
from chaos.door.file_checks import swept
from chaos.door.upload_load import UploadLoad
from chaos.mutants import GATEWAY

if TYPE_CHECKING:
    from chaos.arena import Arena

LEASE_S = 1.0


class Gateways:
    """Each has a port of its own, also after its replacement."""

    def __init__(self, arena: Arena, count: int) -> None:
        self._arena = arena
        self._ports = [free_port() for _ in range(count)]
        self._running: list[Gateway] = []
        self._door = Door(self._ports, arena.ledger.note)
        self._loads = [kind(arena, self._door) for kind in (BatchLoad, UploadLoad, AnswerLoad)]

    @property
    def tally(self) -> Counter[str]:
        """What went through them."""
        return self._door.tally

    async def __aenter__(self) -> Self:
        try:
            for port in self._ports:
                self._running.append(await self._start(port))
        except BaseException:
            await self.__aexit__()
            raise
        for load in self._loads:
            self._arena.load.spawn(load.run())
        return self

    async def __aexit__(self, *error: object) -> None:
        for one in self._running:
            await asyncio.to_thread(one.close)
        self._running.clear()

    async def drain(self) -> None:
        """The loads are over: judge them, and end."""
        for load in self._loads:
            await load.judge()
        for place in range(len(self._running)):
            await self._end(place)
        self.tally["orphans swept"] += await swept(self._arena, self._door)

    async def kill(self, place: int) -> None:
        await asyncio.to_thread(self._running[place].close)
        self._running[place] = await self._start(self._ports[place])

    def halt(self, place: int) -> None:
        """Until it is killed."""
        self._running[place].process.send_signal(signal.SIGSTOP)

    async def freeze(self, place: int, seconds: float) -> None:
        """Another takes its batches over, and then it goes on as if nothing had been."""
        process = self._running[place].process
        process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            process.send_signal(signal.SIGCONT)

    async def replace(self, place: int) -> None:
        """SIGTERM, as a deployment does."""
        await self._end(place)
        await self.kill(place)

    async def _end(self, place: int) -> None:
        status = await asyncio.to_thread(self._running[place].stop)
        if status != 0:
            lines = "".join(self._running[place].lines[-20:])
            self._arena.ledger.note(f"a gateway ended with {status} after SIGTERM: {lines}")

    async def _start(self, port: int) -> Gateway:
        arguments = ("--queue", self._arena.queue, "--port", port, "--grace-s", 1)
        files = ("--files-url", self._arena.files, "--batch-lease-s", LEASE_S)
        how: dict[str, Any] = {}
        if (mutant := self._arena.mutant) is not None and mutant.gateways:
            path = os.pathsep.join([str(BESIDE), *filter(None, [os.environ.get("PYTHONPATH")])])
            how = {"module": ("chaos.mutants", mutant.name, GATEWAY), "PYTHONPATH": path}
        return await asyncio.to_thread(Gateway, self._arena.url, *arguments, *files, **how)
