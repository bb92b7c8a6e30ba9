"""Sends jobs to the running engine. Without one nothing is sent: the engine queue keeps all jobs, and hands
them to the next engine.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream_worker.engine.protocol.frames import Abort, Add
from millstream_worker.engine.protocol.request import EngineRequest
from millstream_worker.engine_link.link import EngineLink


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

    def abort(self, handles: Sequence[int]) -> None:
        if self._link is not None and handles:
            self._link.send(Abort(tuple(handles)))

    async def writable(self, wait_s: float) -> bool:
        """Wait while the engine is far behind in reading; False if it still is after `wait_s`."""
        return self._link is None or await self._link.writable(wait_s)
