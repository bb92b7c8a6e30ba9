"""The front's end of the socket pair, before an engine that does not do its part."""

from __future__ import annotations

import sys

from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.frames import LastWords
from millstream_worker.engine.protocol.request import EngineRequest
from millstream_worker.engine_link import LOOK_S, EngineLink, EnginePort, Silence

SILENT = [sys.executable, "-c", "import time; time.sleep(600)"]


async def test_silence_is_told_until_the_end() -> None:
    link = await EngineLink.start(SILENT, EngineConfig("m"))
    heard = []
    async for frame in link.frames():
        heard.append(frame)
        if len(heard) == 2:
            link.kill()
    assert heard[:2] == [Silence(LOOK_S), Silence(2 * LOOK_S)]
    assert (await link.reap()).signal == 9


async def test_an_engine_that_sends_what_is_no_frame_is_killed() -> None:
    garbage = "import os, sys, time; os.write(int(sys.argv[-1]), bytes([0, 0, 0, 1, 193])); time.sleep(600)"
    link = await EngineLink.start([sys.executable, "-c", garbage], EngineConfig("m"))
    heard = [frame async for frame in link.frames() if not isinstance(frame, Silence)]
    assert [type(frame) for frame in heard] == [LastWords]
    assert "not a frame" in heard[0].message
    assert (await link.reap()).signal == 9


async def test_an_engine_that_does_not_read_holds_nobody_for_ever() -> None:
    link = await EngineLink.start(SILENT, EngineConfig("m"))
    port = EnginePort()
    assert await port.writable(600)  # nobody to wait for
    port.plug(link)
    assert await port.writable(600)
    port.add(EngineRequest(1, tuple(range(3_000_000)), 1))
    assert not await port.writable(0.01)
    link.kill()
    assert await port.writable(600)
    await link.reap()
