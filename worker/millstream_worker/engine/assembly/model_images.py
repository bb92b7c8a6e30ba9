"""Loads what encodes the images of a model that reads them, and checks it on the device. A model whose images
cannot be read serves text, and says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.sizes import size_bytes
from millstream_worker.engine.runner.model_config.config_file import load_config
from millstream_worker.engine.runner.model_config.model_types import HALVES, IMAGE_UNITS
from millstream_worker.engine.runner.model_config.support import UnsupportedModel
from millstream_worker.engine.runner.self_check.deviation import Mismatch
from millstream_worker.engine.runner.self_check.findings import Findings, short
from millstream_worker.engine.runner.vision.image_check import check_images
from millstream_worker.engine.runner.vision.image_features import ImageFeatures
from millstream_worker.engine.runner.vision.image_steps import ROTARY, ImageSteps
from millstream_worker.engine.runner.vision.tower import load_tower
from millstream_worker.images.processor import ImageProcessor, ImagesUnsupported

if TYPE_CHECKING:
    from millstream_worker.engine.brain.waiting.row_factory import Rope
    from millstream_worker.engine.runner.checkpoint.checkpoint import Checkpoint
    from millstream_worker.engine.runner.forward import Eager
    from millstream_worker.engine.runner.model.load import LoadedModel

_MEMORY = {"cpu": 512 * 2**20, "cuda": 2 * 2**30}  # bytes, by the kind of device


@dataclass(frozen=True, slots=True)
class ModelImages:
    """`features`: None where no images are read. `memory`: bytes of images at a time."""

    features: ImageFeatures | None = None
    memory: int = 0

    def steps(self, eager: Eager) -> ImageSteps | None:
        """Returns what computes the steps in which images stand; None where no images are read."""
        return None if self.features is None else ImageSteps(eager, self.features)

    @property
    def rope(self) -> Rope | None:
        """Returns what tells the positions of a prompt with images, where RoPE has several axes."""
        if self.features is None or self.features.tower.rotary is None:
            return None
        return self.features.rope_positions

    @property
    def feature_bytes(self) -> int:
        """Returns the bytes of the features of one token; 0: no images are read."""
        return self.features.tower.feature_bytes if self.features else 0


def load_images(
    config: EngineConfig,
    checkpoint: Checkpoint,
    loaded: LoadedModel,
    findings: Findings,
    mark: Callable[[], None],
) -> ModelImages:
    """Returns the reader of a model's images. Raises ValueError for an `image_memory` that is no size."""
    folder = str(checkpoint.folder)
    kind = load_config(folder).model_type
    if kind not in HALVES:
        return ModelImages()
    try:
        features = _read(config, folder, kind, loaded, findings, mark)
    except (_NotRead, ImagesUnsupported, UnsupportedModel, Mismatch) as error:
        reason = short(error) if isinstance(error, Mismatch) else str(error)
        findings.fall_back(f"{kind} serves text only here: {reason}")
        return ModelImages()
    memory = _MEMORY[loaded.device.type]
    if config.image_memory != "auto":
        given = size_bytes(config.image_memory)
        if not given:
            raise ValueError(f"image_memory {config.image_memory!r} is no size, such as '512MiB'")
        memory = given
    findings.report(f"images: {kind}, {memory / 2**20:,.0f} MiB for those of jobs under way")
    return ModelImages(features, memory=memory)


class _NotRead(Exception):
    """The reason why images are not read, without the model's name."""


def _read(
    config: EngineConfig,
    folder: str,
    kind: str,
    loaded: LoadedModel,
    findings: Findings,
    mark: Callable[[], None],
) -> ImageFeatures:
    if config.images == "off":
        raise _NotRead("images are off (MILLSTREAM_IMAGES)")
    if kind not in IMAGE_UNITS:
        raise _NotRead(f"its images are not among the tested ones ({', '.join(sorted(IMAGE_UNITS))})")
    if loaded.heads.body is None:
        raise _NotRead(f"its layers cannot be computed apart: {loaded.heads.uncut}")
    processor = ImageProcessor.load(folder, config.image_options)
    tower = load_tower(folder, loaded.dtype, loaded.device, processor.float_table(), mark, loaded.library)
    if tower.rotary is not None and not hasattr(loaded.heads.body.call.module, ROTARY):
        raise _NotRead(f"its text layers have no {ROTARY}, in whose place that of its images would stand")
    worst = check_images(tower, processor, loaded)
    findings.passed("images", worst)
    return ImageFeatures(tower)
