"""Which errors of torch, CUDA and Triton are faults of the device, by class and text."""

from __future__ import annotations

import pytest
import torch

from millstream_worker.engine.fatal_errors import last_words
from millstream_worker.engine.protocol.frames import BadFrame, Fault, LastWords


class TritonError(Exception):
    """Triton's base class, by name: it is not installed everywhere."""


class OutOfResources(TritonError):
    pass


DEVICE = (
    torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: unspecified launch failure"),
    RuntimeError("CUDA driver error: device kernel image is invalid"),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("HIP error: misaligned address"),
    RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    OutOfResources("out of resource: shared memory, Required: 102784, Hardware limit: 101376"),
    OSError("libcuda.so cannot found!"),
)
EITHER = (
    torch.AcceleratorError("CUDA error: device-side assert triggered"),
    RuntimeError("CUDA error: device-side assert triggered\nCompile with TORCH_USE_CUDA_DSA"),
)
OTHERS = (
    MemoryError("no memory"),
    BadFrame("7 bytes that are no frame"),
    AssertionError("7 KV blocks are held by no row"),
    RuntimeError("shape mismatch: value tensor of shape [3] cannot be broadcast"),
    ValueError("cuda error: a text that a job has brought, in an error that is not torch's"),
    KeyError(7),
)


@pytest.mark.parametrize(
    ("errors", "fault"), [(DEVICE, Fault.DEVICE), (EITHER, Fault.EITHER), (OTHERS, Fault.NONE)]
)
def test_the_table_of_faults(errors: tuple[Exception, ...], fault: Fault) -> None:
    for error in errors:
        assert last_words(error).fault is fault, repr(error)


def test_last_words_are_one_line_and_never_empty() -> None:
    assert last_words(MemoryError("7 GiB\nand a story")) == LastWords("out of memory: 7 GiB")
    assert last_words(AssertionError()) == LastWords("a broken invariant: AssertionError")
    assert last_words(KeyError("x")) == LastWords("KeyError: 'x'")
    assert last_words(RuntimeError()) == LastWords("RuntimeError")
    assert len(last_words(RuntimeError("7" * 9_000)).message) < 400
