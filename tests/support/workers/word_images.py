"""Images for the model that counts in words: files, and what it must see of each of them. They are prepared
here by the checkpoint's processor alone, without the processes that a worker has for that."""

from __future__ import annotations

import io
import json
import random
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from PIL import Image

from millstream_worker.images.processor import ImageProcessor
from support.engine.counting_images import feature
from support.workers.word_answers import write_words

COUNT = 48  # of different images
_EDGES = ((24, 24), (32, 16))  # width and height: 5 and 3 tiles
_OPTIONS = {
    "image_processor_type": "Idefics3ImageProcessor",
    "size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 16},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WordImage:
    """`features`: what stands for it in a prompt."""

    file: bytes = field(repr=False)
    features: tuple[int, ...]


def write_processor(folder: Path) -> None:
    """Beside the tokenizer, what a worker needs to prepare images."""
    files = {
        "config.json": {"model_type": "idefics3"},
        "preprocessor_config.json": _OPTIONS,
        "processor_config.json": {"processor_class": "Idefics3Processor", "image_seq_len": 2},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


@cache
def image(number: int) -> WordImage:
    """Returns one of `COUNT`: a colour with another one in a corner."""
    source = random.Random(f"image {number}")
    made = Image.new("RGB", _EDGES[number % len(_EDGES)], _colour(source))
    made.paste(_colour(source), (0, 0, 8, 8))
    out = io.BytesIO()
    made.save(out, source.choice(("PNG", "BMP")))
    prepared = _processor().prepare(made)
    pixels, places = prepared.arrays["pixel_values"].tobytes(), range(prepared.tokens.features)
    return WordImage(out.getvalue(), tuple(feature(pixels, place) for place in places))


def _colour(source: random.Random) -> tuple[int, int, int]:
    return source.randrange(256), source.randrange(256), source.randrange(256)


@cache
def _processor() -> ImageProcessor:
    with tempfile.TemporaryDirectory() as folder:
        write_processor(write_words(Path(folder)))
        return ImageProcessor.load(folder)
