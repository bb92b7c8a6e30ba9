"""The worker's end of the processes that prepare its images: a nursery, and a child of it for each image.

A child that dies, or takes too long and is killed, costs its image one try of two; the death of the nursery,
which takes all children along, costs none. The nursery is started again then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgpack.exceptions import UnpackException

from millstream_worker.images.messages import (
    BadImage,
    ImageData,
    NurseryConfig,
    Probe,
    ProcessorFacts,
    bad_image,
    image_data,
    probe,
)
from millstream_worker.images.nursery_process import ForkedChild, NoProcessor, NurseryProcess, ProcessGone

_STARTS = 3  # tries to start the first nursery: without one, no image of this model is read
_PAUSE_S = 0.1  # between two tries to get a child; doubled each time
_LONGEST_PAUSE_S = 10.0
_MOST_GONE = 5  # children in a row that end at once, after which their nursery is replaced
_TRIES = 2  # of an image
_DIED, _SLOW = "died", "slow"


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Bounds of one image."""

    timeout_s: float
    most_pixels: int


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
    _nursery: NurseryProcess | None = None
    _facts: ProcessorFacts | None = None
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def pids(self) -> list[int]:
        """Returns the nursery's process id, if there is one."""
        return [self._nursery.pid] if self._nursery is not None and not self._nursery.is_over else []

    async def open(self, folder: str) -> ProcessorFacts:
        """Load a checkpoint's processor, unless it is loaded. Raises NoProcessor."""
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
            except (ProcessGone, OSError, TimeoutError) as error:
                if not left:
                    problem = f"its image processor cannot be loaded: {type(error).__name__}"
                    raise NoProcessor(problem) from error
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

    async def _tried(self, child: ForkedChild, read: Callable[[Any], Any], request: Sequence[Any]) -> Any:
        """Returns its answer, or the way it ended: with what is no answer, perhaps. Raises BadImage."""
        try:
            async with asyncio.timeout(self.limits.timeout_s):
                return read(_said(*await child.ask(request)))
        except (ProcessGone, ValueError, TypeError, LookupError, UnpackException):
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

    async def _fork(self) -> ForkedChild:
        """From the next nursery, where this one does not work."""
        failures = 0
        while True:
            with contextlib.suppress(ProcessGone, OSError, TimeoutError, NoProcessor):
                nursery = await self._running()
                try:
                    return await nursery.fork()
                except ProcessGone:  # no memory for another process, perhaps
                    if failures % _MOST_GONE == _MOST_GONE - 1:
                        nursery.kill_all()
                except (OSError, TimeoutError):
                    nursery.kill_all()
            await asyncio.sleep(min(_PAUSE_S * 2**failures, _LONGEST_PAUSE_S))
            failures += 1

    async def _running(self) -> NurseryProcess:
        async with self._starting:
            if self._nursery is not None and self._nursery.is_over:
                before, self._nursery = self._nursery, None
                await before.end()
            if self._nursery is None:
                limits = self.limits
                config = NurseryConfig(self._folder, self.options, limits.most_pixels, limits.timeout_s)
                self._nursery, self._facts = await NurseryProcess.start(config)
            return self._nursery


def _said(kind: str, *said: Any) -> Any:
    """Raises BadImage; ValueError and others for what a child does not say."""
    if kind == "bad":
        reason, problem = said
        raise BadImage(*bad_image(reason, problem))
    return said[0]
