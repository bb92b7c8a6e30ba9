"""The served model: its tokenizer, and what the engine reported about itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import structlog

from millstream.wire.state.heartbeat import STARTING_ENGINE
from millstream.wire.state.model_facts import ModelFacts
from millstream_worker.engine.protocol.config import EngineInfo
from millstream_worker.text.image_text import ImagesUnreadable, ImageText
from millstream_worker.text.model import TextModel
from millstream_worker.text.sampling_defaults import NO_DEFAULTS, SamplingDefaults

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ServedModel:
    text: TextModel
    info: EngineInfo
    defaults: SamplingDefaults = NO_DEFAULTS
    images: ImageText | None = None  # None: it reads text alone

    @property
    def facts(self) -> ModelFacts:
        """The engine's report in the wire's names."""
        info = self.info
        own: dict[str, Any] = {
            "model_digest": info.digest,
            "context_length": info.longest_row,
            "fallbacks": "; ".join(info.fallbacks),
        }
        names = (field.name for field in fields(ModelFacts))
        return ModelFacts(**{name: own[name] if name in own else getattr(info, name) for name in names})


class ModelSlot:
    """Filled each time an engine is ready, before it gets any job. After an engine's death its model stays
    until the next one is published. `step`: the last one of an engine's start; `changed` is called when
    either is another. `reads_defaults`: the checkpoint's sampling defaults are used; `read_images`: opens the
    images of a model that reads them, and raises ImagesUnreadable.
    """

    def __init__(self, *, reads_defaults: bool = True) -> None:
        self._reads_defaults = reads_defaults
        self.current: ServedModel | None = None
        self.step = STARTING_ENGINE
        self.changed: Callable[[], None] = lambda: None
        self.read_images: Callable[[TextModel, EngineInfo], Awaitable[ImageText]] | None = None

    def begin(self, step: str) -> None:
        """An engine that is not ready yet has begun this step of its start."""
        self.step = step
        self.changed()

    async def load(self, info: EngineInfo) -> ServedModel:
        """Read the files that an engine names. Raises TokenizerUnusable. A model whose images cannot be read
        here reads text alone.
        """
        served = await asyncio.to_thread(_read, info, self._reads_defaults)
        if not info.images or self.read_images is None:
            return served
        try:
            return replace(served, images=await self.read_images(served.text, info))
        except ImagesUnreadable as error:
            _log.warning("images are not read", reason=str(error))
            return replace(served, info=replace(info, images=False))

    def publish(self, served: ServedModel) -> None:
        self.current = served
        self.changed()

    def get(self) -> ServedModel:
        """For work that is done only after an engine was ready."""
        assert self.current is not None, "entries are taken once an engine is ready"
        return self.current


def _read(info: EngineInfo, reads_defaults: bool) -> ServedModel:
    defaults = SamplingDefaults.read(info.tokenizer) if reads_defaults else NO_DEFAULTS
    return ServedModel(TextModel.load(info.tokenizer, info.vocab_size), info, defaults)
