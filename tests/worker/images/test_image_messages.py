"""Answers of a process that a hostile file has taken over: whatever is not an image's own form is refused."""

from __future__ import annotations

from typing import Any

import pytest

from millstream_worker.images.messages import (
    ImageData,
    ImageTokens,
    PackedArray,
    bad_image,
    image_data,
    packed,
    unpacked,
)

PIXELS = ("pixel_values", "float32", (1, 2), bytes(8))
TOKENS = ((5, 6, 6, 7, 6), ((1, 2), (4, 1)))


def sent(tokens: Any = TOKENS, *arrays: Any) -> Any:
    """As it arrives."""
    return unpacked(packed((tokens, arrays or (PIXELS,)))[4:])


def test_an_image_arrives_as_it_was_sent() -> None:
    tokens, array = ImageTokens(*TOKENS), PackedArray(*PIXELS)
    assert image_data(sent()) == ImageData(tokens, (array,)) == image_data(sent(tokens, array))
    assert image_data(sent()).tokens.features == 3
    scalar = ("scale", "float64", (), bytes(8))
    assert image_data(sent(TOKENS, PIXELS, scalar)).arrays[1] == PackedArray(*scalar)


REFUSED: dict[str, Any] = {
    "no tokens": None,
    "one value": (1,),
    "three values": (*TOKENS, ()),
    "a text of tokens": ("ab", TOKENS[1]),
    "no token": ((5, -6, 6, 7, 6), TOKENS[1]),
    "a large token": ((2**31, 6, 6, 7, 6), TOKENS[1]),
    "a token that is true": ((True, 6, 6, 7, 6), TOKENS[1]),
    "tokens with fractions": ((5.0, 6, 6, 7, 6), TOKENS[1]),
    "no runs": (TOKENS[0], ()),
    "runs that are numbers": (TOKENS[0], (1, 2)),
    "a run of three": (TOKENS[0], ((1, 2, 3),)),
    "a run before the tokens": (TOKENS[0], ((-1, 2),)),
    "a run behind the tokens": (TOKENS[0], ((4, 2),)),
    "an empty run": (TOKENS[0], ((1, 0),)),
    "a run with a fraction": (TOKENS[0], ((1.0, 2),)),
    "a run of half a token": (TOKENS[0], ((1, 1.5),)),
    "runs that overlap": (TOKENS[0], ((1, 2), (2, 1))),
    "runs backwards": (TOKENS[0], ((4, 1), (1, 2))),
}
REFUSED_ARRAYS: dict[str, Any] = {
    "a number": 1,
    "three values": PIXELS[:3],
    "another type": ("pixel_values", "object", (1,), bytes(8)),
    "a type that is none": ("pixel_values", {}, (1,), bytes(8)),
    "no name": (b"pixel_values", "float32", (1, 2), bytes(8)),
    "text for bytes": ("pixel_values", "float32", (1, 2), "12345678"),
    "too few bytes": ("pixel_values", "float32", (1, 2), bytes(7)),
    "too many bytes": ("pixel_values", "float32", (1, 2), bytes(9)),
    "a shape of fractions": ("pixel_values", "float32", (1.0, 2), bytes(8)),
    "a shape of two lacks": ("pixel_values", "float32", (-1, -2), bytes(8)),
    "a shape of nothing": ("pixel_values", "uint8", (2**62, 0, 3), b""),
    "a shape that is a number": ("pixel_values", "float32", 2, bytes(8)),
    "a shape of no end": ("pixel_values", "float32", (2**63,) * 200_000, bytes(8)),
}


def _refused(plain: Any) -> None:
    with pytest.raises((ValueError, TypeError, LookupError)):
        image_data(plain)


@pytest.mark.parametrize("what", REFUSED)
def test_other_tokens_are_refused(what: str) -> None:
    _refused(sent(REFUSED[what]))


@pytest.mark.parametrize("what", REFUSED_ARRAYS)
def test_other_arrays_are_refused(what: str) -> None:
    _refused(sent(TOKENS, PIXELS, REFUSED_ARRAYS[what]))


@pytest.mark.parametrize("plain", [None, 7, b"ab", "ab", (), {"a": 1, "b": 2}, (TOKENS,), (TOKENS, 5)])
def test_what_is_no_image_at_all_is_refused(plain: Any) -> None:
    _refused(plain)


def test_reasons_against_an_image_are_known_and_short() -> None:
    assert bad_image("damaged", "x" * 10**6) == ("damaged", "x" * 500)
    for kind, problem in (("other", "text"), (None, "text"), (("damaged",), "text"), ("damaged", b"text")):
        with pytest.raises(ValueError, match="no reason against an image"):
            bad_image(kind, problem)
