"""A child of the nursery: opens and prepares one image. What a hostile file can do in it ends with it: it has
no secrets, sees no other image, and has bounds of memory, time and files.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from millstream_worker.images.messages import (
    MOST_BYTES,
    BadImage,
    ImageData,
    NurseryConfig,
    Probe,
    packed,
    received,
    unpacked,
)
from millstream_worker.images.opening import opened
from millstream_worker.images.processor import ImageProcessor

_BYTES_A_PIXEL = 20  # of the largest image: decoded, turned, on white, and as arrays
_SPARE_BYTES = 512 * 2**20
_MOST_FILES = 16
_PROBES = ((64, 48), (200, 120))  # width and height
_MOST_REASON = 120  # characters


def serve(peer: socket.socket, processor: ImageProcessor, config: NurseryConfig) -> None:
    """Answer the front once. The first message is the process id, by which it can be killed."""
    _bound(config)
    peer.sendall(packed(os.getpid()))
    kind, given = unpacked(received(peer))
    try:
        done = _prepared(given, processor, config) if kind == "image" else _probed(given, processor)
        peer.sendall(packed(("done", done)))
    except BadImage as error:
        peer.sendall(packed(("bad", error.kind, error.problem)))


def _prepared(data: bytes, processor: ImageProcessor, config: NurseryConfig) -> ImageData:
    """Raises BadImage."""
    image = opened(data, config.most_pixels)
    try:
        made = processor.prepare(image)
    except MemoryError:
        raise BadImage("memory", "takes too much memory when it is prepared; scale it down") from None
    except Exception as error:  # noqa: BLE001 - processors raise whatever an odd size leads them to
        reason = f"{type(error).__name__}: {error}"[:_MOST_REASON]
        size = f"{image.width:,} x {image.height:,} pixels"
        problem = f"of {size} cannot be prepared by the model's image processor ({reason}); change its size"
        raise BadImage("size", problem) from None
    whole = ImageData(made.tokens, made.packed())
    if whole.size > MOST_BYTES:
        problem = (
            f"takes {whole.size // 10**6:,} MB when prepared and may take {MOST_BYTES // 10**6}; scale it"
        )
        raise BadImage("memory", f"{problem} down")
    return whole


def _probed(text: str, processor: ImageProcessor) -> Probe:
    images = [_probe_image(*size) for size in _PROBES]
    first, second = (processor.prepare(image).tokens for image in images)
    return Probe(tuple(processor.ids(text, images)), (first, second))


def _probe_image(width: int, height: int) -> Image.Image:
    values = np.arange(width * height * 3, dtype=np.uint32) % 251
    return Image.fromarray(values.astype(np.uint8).reshape(height, width, 3))


def _bound(config: NurseryConfig) -> None:
    """No file can be written, and a child that computes for too long ends also when nobody is left to kill
    it. Memory is bounded where the system tells how much is mapped already.
    """
    bounds = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: _MOST_FILES,
        resource.RLIMIT_CPU: int(config.timeout_s) + 1,
    }
    for kind, most in bounds.items():
        resource.setrlimit(kind, (most, most))
    if sys.platform == "linux":
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        most = mapped + _BYTES_A_PIXEL * config.most_pixels + _SPARE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
