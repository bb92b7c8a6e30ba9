"""Calls the compiled library: structures, field by field as in paged.cpp and states.h, and entries."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_bool, c_char_p, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

T = TypeVar("T")
MOST_DIM = 4096  # of a head
PER = {torch.bfloat16: 2, torch.float32: 1}  # weights of one output that lie side by side
_PRODUCTS = {
    (torch.bfloat16, torch.bfloat16): "multiply_bfloat16",
    (torch.float32, torch.float32): "multiply_float32",
    (torch.float32, torch.bfloat16): "multiply_halves",
}
_CODES = {torch.bfloat16: "multiply_codes_bfloat16", torch.float32: "multiply_codes_float32"}
_WIDTHS = {torch.bfloat16: "panel_width_bfloat16", torch.float32: "panel_width_float32"}
ENTRIES = {  # by what is computed, and what keys and values are stored as
    (torch.bfloat16, torch.bfloat16): "attend_bfloat16",
    (torch.bfloat16, torch.int8): "attend_bfloat16_int8",
    (torch.float32, torch.float32): "attend_float32",
    (torch.float32, torch.int8): "attend_float32_int8",
}
_MOST_LIKELY = {torch.bfloat16: "most_likely_bfloat16", torch.float32: "most_likely_float32"}
_MASKED = {torch.bfloat16: "mask_bfloat16", torch.float32: "mask_float32"}
_GATE = {torch.bfloat16: "gate_bfloat16", torch.float32: "gate_float32"}
_CONVOLVE = {torch.bfloat16: "convolve_bfloat16", torch.float32: "convolve_float32"}
_ADVANCE = {torch.bfloat16: "advance_bfloat16", torch.float32: "advance_float32"}
_ATTENDED = [*[c_void_p] * 7, *[c_int64] * 6]
_MULTIPLIED = [c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int32, c_int32, c_int32]
_CODED = [*[c_void_p] * 6, c_int64, *[c_int32] * 5]
_MASKING = [c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p, c_int64, c_int32]
_CHOSEN = [c_void_p, *[c_int64] * 3, c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_int32]
_GATED = [c_void_p, c_void_p, c_int64, c_float, c_float, c_int32]
_CONVOLVED = [*[c_void_p] * 6, c_int64]
_ADVANCED = [*[c_void_p] * 8, *[c_int64] * 3]

# query, key, value, sinks, out, layer, step; two strides of each of the first three: of tokens, of heads
Attend = Callable[..., None]
Multiply = Callable[..., None]  # rows, panels, bias, out, count of rows, of inputs, of outputs, of threads
# rows, codes, scales, offsets, bias, out, count of rows, of inputs, of outputs, bits, group, threads
MultiplyCodes = Callable[..., None]
# logits, rows, their size, numbers from one row to the next, masks of rows, bits, words, tokens, non-finite,
# threads
MostLikely = Callable[[int, int, int, int, int | None, int | None, int, int, int, int], None]
# logits, their count in a row, and from one row to the next; rows, their count, bits, words of a row, threads
Mask = Callable[[int, int, int, int, int, int, int, int], None]
# numbers, out, their count, factors of x and x³, threads
Gate = Callable[[int, int, int, float, float, int], None]
# inputs, weight, bias, out, numbers, step, numbers from one token of inputs to the next
Convolve = Callable[..., None]
# query, key, value, log_decay, beta, out, numbers, step, distances of tokens in the first three
Advance = Callable[..., None]
# Address of int64 [calls, 1 + replayed_arguments], calls, threads; whether none of them threw an exception.
Replay = Callable[[int, int, int], bool]


@dataclass(frozen=True, slots=True)
class Panels:
    """The layout of weights in memory, [out / width, in / PER, width, PER], and what multiplies them."""

    width: Mapping[torch.dtype, int]  # by the type of rows
    multiply: Mapping[tuple[torch.dtype, torch.dtype], Multiply]  # by the types of rows and weights


class LayerNumbers(ctypes.Structure):
    """A layer's numbers. They stay the same from step to step."""

    _fields_ = [
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("key_dim", c_int32),
        ("value_dim", c_int32),
        ("block_size", c_int32),
        ("window", c_int32),  # 0: none
        ("scale", c_float),
        ("softcap", c_float),  # 0: none
        ("keys", c_void_p),
        ("values", c_void_p),
        ("key_scales", c_void_p),  # None where they are no codes
        ("value_scales", c_void_p),
    ]


class StepNumbers(ctypes.Structure):
    """A step's numbers. The layers of one shape share them."""

    _fields_ = [
        ("pieces", c_void_p),  # int32 [N, 6]
        ("splits", c_void_p),  # int32 [M, 3]
        ("tables", c_void_p),  # int32 [S, W]
        ("positions", c_void_p),  # int32 [T]
        ("members", c_void_p),  # int32 [T + prefix group members]
        ("first_parts", c_void_p),  # int32 [T]
        ("slots", c_void_p),  # int64 [T]
        ("parts", c_void_p),  # float32
        ("piece_count", c_int32),
        ("split_count", c_int32),
        ("table_width", c_int32),
        ("tokens", c_int32),
        ("threads", c_int32),
        ("together", c_int32),
    ]


class ConvolutionNumbers(ctypes.Structure):
    """A module's convolution."""

    _fields_ = [
        ("channels", c_int32),
        ("taps", c_int32),
        ("activated", c_int32),
        ("most_held", c_int32),  # tokens whose inputs a slot has places for
        ("row", c_int64),  # numbers from one slot's state to the next
        ("state", c_void_p),  # of the first slot
        ("held", c_void_p),
    ]


class RuleNumbers(ctypes.Structure):
    """A module's rule."""

    _fields_ = [
        ("key_heads", c_int32),
        ("heads", c_int32),
        ("key_dim", c_int32),
        ("value_dim", c_int32),
        ("by_channel", c_int32),
        ("corrects", c_int32),
        ("most_held", c_int32),
        ("row", c_int64),
        ("state", c_void_p),
        ("held_keys", c_void_p),
        ("held_values", c_void_p),
        ("held_decays", c_void_p),
        ("held_betas", c_void_p),
    ]


class StateStepNumbers(ctypes.Structure):
    """A step as all modules with a recurrent state see it."""

    _fields_ = [
        ("segments", c_void_p),  # int32 [rows, 6], as `slot_segments.py` has them
        ("count", c_int32),
        ("threads", c_int32),
        ("kept", c_int32),  # nothing is stored
    ]


class Library:
    """A loaded library. Raises OSError for a file that is none, or lacks what it should have, such as an
    OpenMP runtime in this process."""

    def __init__(self, file: Path) -> None:
        self._library = ctypes.CDLL(str(file))
        self.attend: Mapping[tuple[torch.dtype, torch.dtype], Attend] = self._entries(ENTRIES, _ATTENDED)
        width = {dtype: self._entry(name, [], c_int32)() for dtype, name in _WIDTHS.items()}
        multiply = self._entries(_PRODUCTS, _MULTIPLIED)
        self.panels = Panels(width, multiply) if all(width.values()) else None
        codes = _CODES if self._entry("multiplies_codes", [], c_bool)() else {}
        # by the type of rows
        self.multiply_codes: Mapping[torch.dtype, MultiplyCodes] = self._entries(codes, _CODED)
        self.most_likely: Mapping[torch.dtype, MostLikely] = self._entries(_MOST_LIKELY, _CHOSEN)
        self.mask: Mapping[torch.dtype, Mask] = self._entries(_MASKED, _MASKING)
        self.gate: Mapping[torch.dtype, Gate] = self._entries(_GATE, _GATED)
        self.convolve: Mapping[torch.dtype, Convolve] = self._entries(_CONVOLVE, _CONVOLVED)
        self.most_taps: int = self._entry("most_taps", [], c_int32)()  # of a convolution
        self.advance: Mapping[torch.dtype, Advance] = self._entries(_ADVANCE, _ADVANCED)
        self.replay: Replay = self._entry("replay", [c_void_p, c_int64, c_int32], c_bool)
        self.replayed_arguments: int = self._entry("replayed_arguments", [], c_int32)()  # 0: it cannot
        # As "tiles", "pairs" or "float32"; where there is a choice between the last two, they were timed.
        self.bfloat16_products: str = self._entry("bfloat16_products", [], c_char_p)().decode()

    def _entries(self, names: Mapping[T, str], arguments: Sequence[Any]) -> dict[T, Callable[..., Any]]:
        return {types: self._entry(name, arguments) for types, name in names.items()}

    def _entry(self, name: str, arguments: Sequence[Any], result: Any = None) -> Callable[..., Any]:
        try:
            entry: Any = getattr(self._library, name)
        except AttributeError as error:
            raise OSError(f"no entry {name}") from error
        entry.argtypes, entry.restype = arguments, result
        called: Callable[..., Any] = entry
        return called
