"""Opens the images of a model that reads them: starts the processes that prepare them, and checks that
prompts show them as transformers would.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from millstream_worker.engine.protocol.config import EngineInfo
from millstream_worker.images.messages import BadImage
from millstream_worker.images.nursery_process import NoProcessor
from millstream_worker.images.pool import ImagePool
from millstream_worker.text.image_text import ImagesUnreadable, ImageText
from millstream_worker.text.model import TextModel

_CORES_OF_A_FRONT = 2  # beside a GPU: for the worker and the engine's launches
_MOST = 8


@dataclass(slots=True, eq=False)
class ImageReader:
    """`processes`: that prepare images at a time; 0: as many as the device leaves cores for."""

    pool: ImagePool
    processes: int
    _folder: str = ""
    _known: ImageText | None = None  # of that folder

    async def read(self, text: TextModel, info: EngineInfo) -> ImageText:
        """Reads nothing again of a checkpoint that was read before: a new engine costs no images. Raises
        ImagesUnreadable.
        """
        if self._known is None or info.tokenizer != self._folder:
            self._known = None  # the processes are another checkpoint's from now on
            self._known = await self._read(text, info)
            self._folder = info.tokenizer
        return self._known

    async def _read(self, text: TextModel, info: EngineInfo) -> ImageText:
        self.pool.size = self.processes or processes_beside(info.device, available_cores())
        try:
            facts = await self.pool.open(info.tokenizer)
            shown = text.template.with_two_images()
            if shown.count(facts.placeholder) != 2:
                raise ImagesUnreadable("its chat template shows no images")
            return ImageText.checked(facts, text, shown, await self.pool.probe(shown))
        except (NoProcessor, BadImage) as error:
            raise ImagesUnreadable(str(error)) from error


def processes_beside(device: str, cores: int) -> int:
    """Preparing pages is a small part of computing them on a CPU, and the largest beside a GPU."""
    if device.startswith("cpu"):
        return max(1, cores // 4)
    return max(1, min(_MOST, cores - _CORES_OF_A_FRONT))


def available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
