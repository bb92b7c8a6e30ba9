"""One layer's attention of an 8B model, timed apart: as our code launches it, launched otherwise, and torch's
flash attention over keys that are not paged. Recorded, so that the host's part does not count."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from ops.gpu_survey.parts.timing import BLOCK, Rows, median_ms, plan_of
from ops.gpu_survey.survey import Survey
from torch.nn.attention import SDPBackend, sdpa_kernel, varlen
from torch.nn.functional import scaled_dot_product_attention

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.gpu.attention import launches, tile_sizes
from millstream_worker.engine.runner.gpu.attention.triton_backend import TritonAttention
from millstream_worker.engine.runner.gpu.cuda_graphs.cuda import CudaRecorder
from millstream_worker.engine.runner.kv.kv_format import KVFormat
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage

LAYER = LayerSpec(32, 8, 128, 128, 128**-0.5)
DECODE: dict[str, Rows] = {
    "decode 256 x 300": [(299, 1)] * 256,
    "decode 256 x 4,000": [(3999, 1)] * 256,
    "decode 72 x 4,000": [(3999, 1)] * 72,
    "decode 1 x 8,000": [(7999, 1)],
    "decode 255 x 300 + 1 x 30,000": [(299, 1)] * 255 + [(29_999, 1)],
}
FRESH: dict[str, Rows] = {
    "prefill 8 x 1,024": [(0, 1024)] * 8,
    "prefill 1 x 8,192": [(0, 8192)],
    "prefill 64 x 128": [(0, 128)] * 64,
}
PREFILL = FRESH | {"prefill 16 after 32,768": [(32_768, 16)]}
INT8 = ("decode 256 x 300", "decode 256 x 4,000", "decode 1 x 8,000", "prefill 8 x 1,024")
_TINY: dict[str, Rows] = {"decode 2 x 20": [(19, 1)] * 2, "prefill 1 x 20": [(0, 20)]}
_TINY_LAYER = LayerSpec(2, 1, 16, 16, 0.25)
# What a launch gets in place of its own; PREFILL_QUERIES of `tile_sizes`.
DECODE_VARIANTS: tuple[dict[str, int], ...] = (
    {"num_warps": 1}, {"num_warps": 4}, {"num_stages": 2}, {"num_stages": 4}, {"KEYS": 32}, {"KEYS": 128},
    {"KEYS": 128, "num_stages": 2},
)  # fmt: skip
INT8_VARIANTS: tuple[dict[str, int], ...] = (
    {"num_warps": 1}, {"num_warps": 2}, {"num_warps": 8}, {"num_stages": 3}, {"KEYS": 64, "num_warps": 8},
)  # fmt: skip
PREFILL_VARIANTS: tuple[dict[str, int], ...] = (
    {"num_warps": 4}, {"num_stages": 2}, {"num_stages": 4}, {"KEYS": 128, "num_stages": 2},
    {"KEYS": 128, "num_stages": 3}, {"PREFILL_QUERIES": 64, "num_warps": 4},
    {"PREFILL_QUERIES": 256, "num_stages": 2},
)  # fmt: skip


def as_they_are(survey: Survey) -> None:
    for name, rows in (_TINY if survey.tiny else DECODE | PREFILL).items():
        survey.attempt(name, partial(_timed, survey, rows))
        if survey.tiny or name in INT8:
            survey.attempt(f"{name}, int8", partial(_timed, survey, rows, KVFormat.INT8))
    survey.attempt("decode 200 that share 4,000 of 4,064", partial(_shared, survey))
    for name, rows in FRESH.items():
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            survey.attempt(f"{name}, torch's {backend.name}", partial(_unpaged, survey, rows, backend))
        survey.attempt(f"{name}, torch's varlen_attn", partial(_varlen, survey, rows))


def variants(survey: Survey) -> None:
    if survey.tiny:
        with _launched(PREFILL_QUERIES=64, num_warps=4):
            survey.attempt("tiny", partial(_timed, survey, _TINY["prefill 1 x 20"]))
        return
    plain, int8 = KVFormat.AS_COMPUTED, KVFormat.INT8
    coded = {name: DECODE[name] for name in INT8 if name in DECODE}
    for cases, kv_format, ways in (
        (DECODE, plain, DECODE_VARIANTS),
        (PREFILL, plain, PREFILL_VARIANTS),
        (coded, int8, INT8_VARIANTS),
    ):
        for way in ways:
            words = ", ".join([kv_format.value, *(f"{key} {value}" for key, value in way.items())])
            with _launched(**way):
                for name, rows in cases.items():
                    survey.attempt(f"{name}, {words}", partial(_timed, survey, rows, kv_format))


@dataclass(frozen=True, slots=True)
class _Launched:
    """A kernel whose launches get other arguments than they ask for."""

    kernel: Any
    others: dict[str, int]

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *given, **options: self.kernel[grid](*given, **options | self.others)


@contextlib.contextmanager
def _launched(PREFILL_QUERIES: int = tile_sizes.PREFILL_QUERIES, **others: int) -> Iterator[None]:
    kernels = {
        name: _Launched(getattr(launches, name), others)
        for name in ("decode_kernel", "prefill_kernel", "shared_kernel")
    }
    with mock.patch.multiple(launches, **kernels):
        with mock.patch.object(tile_sizes, "PREFILL_QUERIES", PREFILL_QUERIES):
            yield


def _timed(survey: Survey, rows: Rows, kv_format: KVFormat = KVFormat.AS_COMPUTED) -> str:
    decodes = rows[0][1] == 1
    us = _layer_us(survey, plan_of(rows), repeats=10 if decodes else 3, kv_format=kv_format)
    if not decodes:
        return _rate(us, rows)
    read = sum(cached + 1 for cached, _ in rows) * replace(LAYER, kv_format=kv_format).token_bytes(
        torch.bfloat16
    )
    return f"{us:,.0f} us, {read / us / 1e6:.2f} TB/s"


def _rate(us: float, rows: Rows) -> str:
    work = sum(4 * LAYER.heads * LAYER.key_dim * new * (cached + (new + 1) / 2) for cached, new in rows)
    return f"{us:,.0f} us, {work / us / 1e6:.0f} TFLOP/s"


def _shared(survey: Survey) -> str:
    rows, shared = ([(39, 1)] * 3, 2) if survey.tiny else ([(4063, 1)] * 200, 250)
    apart, together = (_layer_us(survey, plan_of(rows, shared, prefix_groups=way)) for way in (False, True))
    return f"{apart:,.0f} us apart, {together:,.0f} us shared"


@torch.inference_mode()
def _layer_us(
    survey: Survey, plan: Plan, repeats: int = 10, kv_format: KVFormat = KVFormat.AS_COMPUTED
) -> float:
    device, dtype = torch.device(survey.device), torch.float16 if survey.tiny else torch.bfloat16
    layer = replace(_TINY_LAYER if survey.tiny else LAYER, kv_format=kv_format)
    storage = KVStorage([layer], int(plan.block_tables[0].max()) + 1, BLOCK, dtype, device)
    backend = TritonAttention(storage)
    query, key, value = (
        torch.randn(plan.token_count, heads, layer.key_dim, device=device, dtype=dtype)
        for heads in (layer.heads, layer.kv_heads, layer.kv_heads)
    )
    backend.begin(plan)
    if survey.tiny:
        return 1e3 * median_ms(lambda: backend.attend(0, query, key, value), times=1)
    recorder = CudaRecorder(device)
    with recorder.apart():
        backend.attend(0, query, key, value)
        recorder.begin()
        try:
            for _ in range(repeats):
                backend.attend(0, query, key, value)
            replay = recorder.end()
        finally:
            recorder.drop()
    return 1e3 * median_ms(replay) / repeats


@torch.inference_mode()
def _unpaged(survey: Survey, rows: Rows, backend: SDPBackend) -> str:
    """The same products, heads not grouped."""
    survey.need_cuda()
    shape = (len(rows), LAYER.heads, rows[0][1], LAYER.key_dim)
    tensors = [torch.randn(shape, device=survey.device, dtype=torch.bfloat16) for _ in range(3)]
    with sdpa_kernel(backend):
        return _rate(1e3 * median_ms(lambda: scaled_dot_product_attention(*tensors, is_causal=True)), rows)


@torch.inference_mode()
def _varlen(survey: Survey, rows: Rows) -> str:
    """On the step's own tensors, with grouped heads handed over as they are."""
    survey.need_cuda()
    new, known = rows[0][1], inspect.signature(varlen.varlen_attn).parameters
    more: dict[str, Any] = {"is_causal": True} if "is_causal" in known else {"window_size": (-1, 0)}
    more |= {"enable_gqa": True} if "enable_gqa" in known else {}
    starts = torch.arange(len(rows) + 1, device=survey.device, dtype=torch.int32) * new
    tensors = [
        torch.randn(len(rows) * new, heads, LAYER.key_dim, device=survey.device, dtype=torch.bfloat16)
        for heads in (LAYER.heads, LAYER.kv_heads, LAYER.kv_heads)
    ]
    attend = partial(varlen.varlen_attn, *tensors, starts, starts, new, new, **more)
    return _rate(1e3 * median_ms(attend), rows)
