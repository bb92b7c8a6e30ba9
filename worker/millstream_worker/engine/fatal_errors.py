"""Classifies the error that ends an engine: the reason for the front, and whether the device, or the code on
it, is at fault. The names of an error's classes and its text decide, so torch and Triton are not imported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from millstream_worker.engine.protocol.frames import Fault, LastWords


@dataclass(frozen=True, slots=True)
class _Kind:
    """Errors of these classes whose text matches."""

    fault: Fault
    text: str  # pattern
    classes: tuple[str, ...]
    heading: str

    def matches(self, error: BaseException) -> bool:
        names = {base.__name__ for base in type(error).__mro__}
        return (
            not names.isdisjoint(self.classes) and re.search(self.text, str(error), re.IGNORECASE) is not None
        )


_RUNTIME = ("RuntimeError", "AcceleratorError", "OSError")
_DEVICE = "a device fault"
_LONGEST = 300  # characters: the text reaches the senders of jobs
KINDS = (  # the first that matches counts
    _Kind(Fault.DEVICE, "", ("OutOfMemoryError",), "out of device memory"),
    _Kind(Fault.NONE, "", ("MemoryError",), "out of memory"),
    _Kind(Fault.NONE, "", ("BadFrame",), "the front sent a bad frame"),
    _Kind(Fault.NONE, "", ("AssertionError",), "a broken invariant"),
    # An index out of range, say: by what a job contains, or by a wrong kernel.
    _Kind(Fault.EITHER, "device-side assert|hipErrorAssert", _RUNTIME, "an assertion on the device"),
    _Kind(Fault.DEVICE, "", ("AcceleratorError", "TritonError"), _DEVICE),
    _Kind(Fault.DEVICE, r"\b(cuda|hip|triton) (driver )?error\b", _RUNTIME, _DEVICE),
    _Kind(Fault.DEVICE, "illegal memory access|misaligned address|launch failure", _RUNTIME, _DEVICE),
    _Kind(Fault.DEVICE, r"\b(cublas|cudnn|cusolver|hipblas|miopen)\w*[ _](status|error)", _RUNTIME, _DEVICE),
    _Kind(Fault.DEVICE, r"\b(nccl|nvrtc|device kernel image)\b|libcuda\.so", _RUNTIME, _DEVICE),
)  # fmt: skip


def last_words(error: BaseException) -> LastWords:
    """The frame for the front: one line, and the fault."""
    text = str(error).strip().partition("\n")[0][:_LONGEST]
    for kind in KINDS:
        if kind.matches(error):
            return LastWords(f"{kind.heading}: {text or type(error).__name__}", kind.fault)
    return LastWords(f"{type(error).__name__}: {text}" if text else type(error).__name__)
