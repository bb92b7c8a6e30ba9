"""Prepares images for a model as its checkpoint's own processor of transformers does, one at a time: the
tokens that take the place of an image in a prompt, and its pixels as bytes. It works with and without torch;
no processor of torchvision is used, so both have the same bits.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from transformers import AutoTokenizer

from millstream_worker.images.messages import ImageTokens, PackedArray

_TEXT_FIELDS = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
_NEEDS_TORCHVISION = {
    "cohere2_vision", "kimi_k25", "lfm2_vl", "minicpm_ocr", "molmo2", "muse_glimmer", "perception_lm",
    "unlimited_ocr",
}  # fmt: skip


class ImagesUnsupported(Exception):
    """A checkpoint whose images are not read; the message is the reason, which begins with "its"."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedImage:
    """`arrays`: what the model's encoder takes, for one image; `pixel_values` are bytes, which `float_table`
    maps to the processor's floats.
    """

    tokens: ImageTokens
    arrays: dict[str, np.ndarray[Any, Any]]

    def packed(self) -> tuple[PackedArray, ...]:
        """Returns the arrays as an engine gets them."""
        return tuple(
            PackedArray(name, one.dtype.name, one.shape, one.tobytes()) for name, one in self.arrays.items()
        )


class ImageProcessor:
    """Made by `load`. `placeholder`: what the chat template writes for an image, a token of its own."""

    def __init__(self, whole: Any, options: dict[str, Any], *, wrapped: bool = False) -> None:
        self._whole = whole
        self._options = options  # of each call, for images
        self._marks = (whole.image_start_token, whole.image_end_token) if wrapped else ("", "")
        self.placeholder: str = whole.image_token
        self.placeholder_id: int = whole.image_token_id

    @classmethod
    def load(cls, folder: str | Path, options: str = "") -> ImageProcessor:
        """Load the processor of a checkpoint's folder. `options`: a JSON object of values that replace those
        of the checkpoint's image processor. Raises ImagesUnsupported.
        """
        try:
            kind = json.loads((Path(folder) / "config.json").read_bytes())["model_type"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ImagesUnsupported(f"its config.json cannot be read: {error}") from error
        if kind in _NEEDS_TORCHVISION:
            raise ImagesUnsupported("its image processor needs torchvision")
        if kind not in PROVEN_IMAGES:
            raise ImagesUnsupported(f"its images are not among the tested ones ({', '.join(PROVEN_IMAGES)})")
        proven = PROVEN_IMAGES[kind]
        try:
            whole = _whole_processor(proven, str(folder), options)
            return cls(whole, proven.options, wrapped=proven.wrapped)
        except Exception as error:  # whatever transformers raises for a damaged file, or an unknown option
            raise ImagesUnsupported(f"its image processor cannot be loaded: {error}") from error

    def prepare(self, image: Image.Image) -> PreparedImage:
        """Raises ValueError for what the processor makes nothing usable of."""
        before, behind = self._marks
        made = self._call(before + self.placeholder + behind, [image])
        tokens = np.asarray(made["input_ids"])[0]
        tokens = tokens[1:-1] if before else tokens  # each is one token
        runs = _runs(tokens == self.placeholder_id)
        if not runs:
            raise ValueError("the image processor leaves it no place in the prompt")
        arrays = {name: np.asarray(made[name]) for name in made if name not in _TEXT_FIELDS}
        arrays["pixel_values"] = _as_bytes(arrays["pixel_values"])
        return PreparedImage(ImageTokens(tuple(tokens.tolist()), runs), arrays)

    def ids(self, text: str, images: Sequence[Image.Image]) -> list[int]:
        """Returns the token ids of a rendered conversation, as the processor makes them by itself."""
        ids: list[int] = np.asarray(self._call(text, images)["input_ids"])[0].tolist()
        return ids

    def float_table(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Returns the processor's floats: float32 of [3, 256], by channel and byte."""
        pixels: Any = np.broadcast_to(np.arange(256, dtype=np.uint8), (3, 1, 256))
        one = self._whole.image_processor
        if one.do_rescale:
            pixels = one.rescale(pixels, one.rescale_factor)
        if one.do_normalize:
            pixels = one.normalize(pixels, one.image_mean, one.image_std)
        table: np.ndarray[Any, np.dtype[np.float32]] = np.ascontiguousarray(pixels[:, 0], dtype=np.float32)
        return table

    def _call(self, text: str, images: Sequence[Image.Image]) -> Any:
        """Only decoded images are given: of texts, processors open paths and fetch addresses."""
        return self._whole(
            text=[text],
            images=[list(images)],
            return_tensors="np",
            images_kwargs={"do_rescale": False, "do_normalize": False, **self._options},
            text_kwargs={"add_special_tokens": False},
        )


def _runs(is_feature: np.ndarray[Any, Any]) -> tuple[tuple[int, int], ...]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], is_feature.astype(np.int8), [0]))))
    return tuple((int(first), int(end - first)) for first, end in edges.reshape(-1, 2))


def _as_bytes(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Raises ValueError for numbers that are no bytes: the table of floats would give other values."""
    codes = pixels.astype(np.uint8, copy=False)
    if codes is not pixels and not np.array_equal(codes, pixels):
        raise ValueError("the image processor gives pixels that are no bytes")
    return np.ascontiguousarray(codes)


# --- the types whose answers the tests compare with transformers' own --------------------------------------


@dataclass(frozen=True, slots=True)
class _Proven:
    """`images` and `whole`: module and class of the image processor and of the one for images and text."""

    images: tuple[str, str]
    whole: tuple[str, str]
    import_whole: Callable[[str], Any] = importlib.import_module
    wrapped: bool = False  # it takes a placeholder only between its own marks
    videos: bool = False  # its processor has a video half, which needs torchvision
    options: dict[str, Any] = field(default_factory=dict)


def _import_smolvlm(name: str) -> Any:
    """Its processor is refused without `num2words`, which spells the numbers of videos."""
    module: Any = importlib.import_module(name)
    module.num2words = module.num2words or object()
    return module


def _import_pixtral(name: str) -> Any:
    """It imports a function from a module that needs torchvision; the module of PIL has it, too."""
    torchvision_name = "transformers.models.pixtral.image_processing_pixtral"
    pil = importlib.import_module("transformers.models.pixtral.image_processing_pil_pixtral")
    sys.modules.setdefault(torchvision_name, pil)
    try:
        return importlib.import_module(name)
    finally:
        if sys.modules[torchvision_name] is pil:
            del sys.modules[torchvision_name]


_PIXTRAL = ("pixtral.image_processing_pil_pixtral", "PixtralImageProcessorPil")
_QWEN = ("qwen2_vl.image_processing_pil_qwen2_vl", "Qwen2VLImageProcessorPil")
_UNPADDED = {"do_pad": False}  # one image alone: its tiles have one size, and a mask would be of ones
PROVEN_IMAGES: dict[str, _Proven] = {
    "idefics3": _Proven(
        ("idefics3.image_processing_pil_idefics3", "Idefics3ImageProcessorPil"),
        ("idefics3.processing_idefics3", "Idefics3Processor"),
        options=_UNPADDED,
    ),
    "smolvlm": _Proven(
        ("smolvlm.image_processing_pil_smolvlm", "SmolVLMImageProcessorPil"),
        ("smolvlm.processing_smolvlm", "SmolVLMProcessor"),
        _import_smolvlm,
        videos=True,
        options=_UNPADDED,
    ),
    "lighton_ocr": _Proven(_PIXTRAL, ("lighton_ocr.processing_lighton_ocr", "LightOnOcrProcessor")),
    "mistral3": _Proven(_PIXTRAL, ("pixtral.processing_pixtral", "PixtralProcessor"), _import_pixtral),
    "glm_ocr": _Proven(
        ("glm46v.image_processing_pil_glm46v", "Glm46VImageProcessorPil"),
        ("glm46v.processing_glm46v", "Glm46VProcessor"),
        videos=True,
    ),
    "granite_docling": _Proven(
        ("granite_docling.image_processing_pil_granite_docling", "GraniteDoclingImageProcessorPil"),
        ("granite_docling.processing_granite_docling", "GraniteDoclingProcessor"),
    ),
    "hunyuan_vl": _Proven(
        ("hunyuan_vl.image_processing_pil_hunyuan_vl", "HunYuanVLImageProcessorPil"),
        ("hunyuan_vl.processing_hunyuan_vl", "HunYuanVLProcessor"),
        wrapped=True,
    ),
    "paddleocr_vl": _Proven(
        ("paddleocr_vl.image_processing_pil_paddleocr_vl", "PaddleOCRVLImageProcessorPil"),
        ("paddleocr_vl.processing_paddleocr_vl", "PaddleOCRVLProcessor"),
    ),
    "qwen2_vl": _Proven(_QWEN, ("qwen2_vl.processing_qwen2_vl", "Qwen2VLProcessor"), videos=True),
    "qwen2_5_vl": _Proven(_QWEN, ("qwen2_5_vl.processing_qwen2_5_vl", "Qwen2_5_VLProcessor"), videos=True),
    "qwen3_vl": _Proven(_QWEN, ("qwen3_vl.processing_qwen3_vl", "Qwen3VLProcessor"), videos=True),
    "internvl": _Proven(
        ("got_ocr2.image_processing_pil_got_ocr2", "GotOcr2ImageProcessorPil"),
        ("internvl.processing_internvl", "InternVLProcessor"),
        videos=True,
    ),
}


def _whole_processor(proven: _Proven, folder: str, options: str) -> Any:
    models = "transformers.models."
    module, name = proven.images
    given = json.loads(options or "{}")
    images = getattr(importlib.import_module(models + module), name).from_pretrained(
        folder, local_files_only=True, **given
    )
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    module, name = proven.whole
    whole = getattr(proven.import_whole(models + module), name)
    parts = [images, tokenizer]
    if proven.videos:
        whole = type(name, (whole,), {"check_argument_for_proper_class": lambda *_: None})
        parts.append(None)
    saved, _ = whole.get_processor_dict(folder, local_files_only=True)
    return whole.from_args_and_dict(parts, saved)
