"""Defines the messages between the worker and the processes that prepare its images: msgpack over socket
pairs, each with its length before it. Neither numpy nor Pillow is needed to read it.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass, fields
from math import prod
from typing import Any

import msgpack

LENGTH = struct.Struct(">I")
KINDS = ("damaged", "pixels", "frames", "depth", "size", "memory", "died", "time")  # of refused images
ITEM_BYTES = {"uint8": 1, "bool": 1, "int32": 4, "int64": 8, "float32": 4, "float64": 8}
_MOST_AXES = 8  # of an array
_LONGEST = 500  # characters of what is said of an image
MOST_BYTES = 60 * 2**20  # of a prepared image: it goes to the engine in one frame


class BadImage(Exception):
    """An image that cannot be read. `kind`: a word for the metrics; `problem`: for whoever sent it, to stand
    behind the image's name.
    """

    def __init__(self, kind: str, problem: str) -> None:
        self.kind = kind
        self.problem = problem
        super().__init__(problem)


@dataclass(frozen=True, slots=True)
class NurseryConfig:
    """`folder`: of the checkpoint. `options`: of its image processor, as JSON. `timeout_s`: CPU seconds for
    one image, after which a child ends by itself.
    """

    folder: str
    options: str
    most_pixels: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class PackedArray:
    """An array as its bytes, in C order."""

    name: str
    dtype: str  # of numpy, as "uint8"
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """The tokens that take the placeholder's place in a prompt. `runs`: first place in them and number of
    tokens of each run of features.
    """

    ids: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]

    @property
    def features(self) -> int:
        return sum(count for _, count in self.runs)


@dataclass(frozen=True, slots=True)
class ImageData:
    """An image as the model takes it."""

    tokens: ImageTokens
    arrays: tuple[PackedArray, ...]

    @property
    def size(self) -> int:
        """Returns its bytes."""
        return sum(len(array.data) for array in self.arrays)


@dataclass(frozen=True, slots=True)
class ProcessorFacts:
    """`placeholder`: what the chat template writes for an image, a token of its own."""

    placeholder: str
    placeholder_id: int


@dataclass(frozen=True, slots=True)
class Probe:
    """The processor's own ids of a conversation with two images, and what it makes of each alone."""

    whole: tuple[int, ...]
    images: tuple[ImageTokens, ImageTokens]


def packed(value: Any) -> bytes:
    """Returns a message with its length. `value`: plain, or one of the dataclasses."""
    body: bytes = msgpack.packb(value, default=_fields)
    return LENGTH.pack(len(body)) + body


def unpacked(body: bytes | bytearray) -> Any:
    """Returns plain values; lists are tuples."""
    return msgpack.unpackb(body, use_list=False)


def received(peer: socket.socket) -> bytes:
    """Returns the body of the next message. Raises EOFError where the peer has gone."""
    return _exactly(peer, *LENGTH.unpack(_exactly(peer, LENGTH.size)))


def _exactly(peer: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    got = 0
    while got < size:
        if not (read := peer.recv_into(memoryview(data)[got:])):
            raise EOFError
        got += read
    return bytes(data)


def image_data(plain: Any) -> ImageData:
    """Raises ValueError and others for what no child sends that a hostile file has not taken over."""
    tokens, arrays = plain
    made = ImageData(ImageTokens(*tokens), tuple(PackedArray(*array) for array in arrays))
    if not any(array.name == "pixel_values" for array in made.arrays):
        raise ValueError("an image without pixels")
    for array in made.arrays:
        _check_array(array)
    _check_tokens(made.tokens)
    return made


def _check_array(array: PackedArray) -> None:
    """An engine makes an array of it, and would end by another."""
    if type(array.name) is not str or type(array.data) is not bytes:
        raise ValueError("an array without a name or bytes")
    sizes = array.shape
    if len(sizes) > _MOST_AXES or not all(type(size) is int and 0 < size < 2**31 for size in sizes):
        raise ValueError("an array without a shape")
    if prod(array.shape) * ITEM_BYTES[array.dtype] != len(array.data):
        raise ValueError("an array of another size than its shape has")


def _check_tokens(tokens: ImageTokens) -> None:
    """The runs are in their order, so that a prompt has its features once."""
    if not all(type(token) is int and 0 <= token < 2**31 for token in tokens.ids):
        raise ValueError("tokens that are none")
    end = 0
    for first, count in tokens.runs:
        if not type(first) is type(count) is int or first < end or count < 1:
            raise ValueError("runs that are none")
        end = first + count
    if not 0 < end <= len(tokens.ids):
        raise ValueError("no runs, or some beyond the tokens")


def bad_image(kind: Any, problem: Any) -> tuple[str, str]:
    """Returns what is said of an image. Raises ValueError, as above."""
    if kind not in KINDS or not isinstance(problem, str):
        raise ValueError("no reason against an image")
    return kind, problem[:_LONGEST]


def probe(plain: Any) -> Probe:
    whole, (first, second) = plain
    return Probe(whole, (ImageTokens(*first), ImageTokens(*second)))


def _fields(value: Any) -> Any:
    return [getattr(value, field.name) for field in fields(value)]
