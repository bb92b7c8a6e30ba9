"""The kernel that draws beside the CPU's sampler, of the same weights. Run by attention/test_kernels.py in a
process of its own, where Triton interprets it on the CPU; on a machine with a GPU it is compiled there."""

from __future__ import annotations

from itertools import cycle, islice, product
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from support.engine.attention_step import DEVICE, ON_GPU
from support.engine.drawn_weights import drawn_weights
from support.engine.sampling_steps import KINDS, Row, draw, draw_plan, logits_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from millstream_worker.engine.brain.batch.plan import RowLoad, TokenMasks
from millstream_worker.engine.protocol.request import SamplingSpec
from millstream_worker.engine.runner.gpu.sampling.triton_chooser import TritonChooser
from millstream_worker.engine.runner.gpu.sampling.triton_draws import TritonDraws
from millstream_worker.engine.runner.sampling import draw_cpu, slot_settings
from millstream_worker.engine.runner.sampling.numpy_chooser import NumpyChooser
from millstream_worker.engine.runner.sampling.sampler import Sampler
from millstream_worker.engine.runner.sampling.slot_settings import Settings

pytestmark = pytest.mark.timeout(900)  # of many rows and large vocabularies
SPECS = (
    SamplingSpec(),
    SamplingSpec(temperature=0.3, min_p=0.02),
    SamplingSpec(min_p=1.0),
    SamplingSpec(top_p=0.9),
    SamplingSpec(top_p=1e-300),
    SamplingSpec(top_p=0.999999, temperature=2.5),
    SamplingSpec(top_p=0.95, min_p=0.3),
    SamplingSpec(top_k=2),
    SamplingSpec(top_k=40, top_p=0.8, min_p=0.01),
    SamplingSpec(top_k=65, temperature=5.0),
    SamplingSpec(top_k=1000),
    SamplingSpec(top_k=3000, top_p=0.99),
    SamplingSpec(top_k=1, top_p=0.5),
)
MANY = 130 if ON_GPU else 13  # rows of each vocabulary: they take their time where they are interpreted
UNIFORMS = (0.0, 0.3, 0.5, 0.9, float(np.nextafter(1, 0)), 1.0)


@pytest.fixture
def same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's sampler draws from the kernel's weights: exp is another one."""

    def weigh(logits: Tensor, peak: Tensor, temperature: Any) -> Any:
        sound = torch.where(peak.isfinite()[:, None], logits, 0.0).to(DEVICE)
        temperatures = torch.from_numpy(temperature.copy()).to(DEVICE)
        return drawn_weights(sound, temperatures).cpu().float().numpy()

    monkeypatch.setattr(draw_cpu, "_weigh", weigh)


def check(logits: Tensor, specs: list[SamplingSpec], noise: list[float]) -> None:
    """Of rows [M, V], each with its settings and uniform: all by one launch; the CPU's each by its way."""
    count, vocab = logits.shape
    settings = slot_settings.empty(count)
    for row, spec in enumerate(specs):
        settings[row] = slot_settings.settings_of(spec, vocab)
    columns = torch.from_numpy(slot_settings.columns(settings, np.array(noise)))
    given = torch.arange(count), columns, torch.from_numpy(settings["top_k"].copy())
    tokens, non_finite = TritonDraws(vocab).draw(logits.to(DEVICE), *(one.to(DEVICE) for one in given))
    assert not non_finite.any()
    assert tokens.tolist() == expected(logits, settings, np.array(noise)).tolist()


def expected(logits: Tensor, settings: Settings, noise: Any) -> Any:
    tokens = np.empty(len(logits), np.int64)
    ranked = (settings["top_k"] < logits.shape[1]) | (settings["top_p"] < 1)
    for of, cpu in ((ranked, draw_cpu.draw_by_rank), (~ranked, draw_cpu.draw_by_id)):
        if of.any():
            rows = logits[torch.from_numpy(of)].float()
            tokens[of] = cpu(rows, rows.amax(-1), settings[of], noise[of])
    return tokens


def rows_of(vocab: int, count: int, kinds: tuple[str, ...] = KINDS, seed: int = 0) -> Tensor:
    """As many of each kind, in turn."""
    random = torch.Generator().manual_seed(seed)
    each = [logits_of(kind, -(-count // len(kinds)), vocab, random) for kind in kinds]
    return torch.stack(each, 1).flatten(0, 1)[:count]


@pytest.mark.usefixtures("same_weights")
@pytest.mark.parametrize(
    ("vocab", "dtype"),
    [
        (1, torch.float32),
        (2, torch.float32),
        (4097, torch.float32),
        (128_256, torch.float16),
    ],
)
def test_the_tokens_are_the_cpu_s(vocab: int, dtype: torch.dtype) -> None:
    count = {4097: 2 * len(SPECS), 128_256: len(SPECS) if ON_GPU else 5}.get(vocab, len(SPECS))
    logits = rows_of(vocab, count).to(dtype)
    check(logits, list(islice(cycle(SPECS), count)), list(islice(cycle(UNIFORMS), count)))


@pytest.mark.usefixtures("same_weights")
def test_weights_may_be_equal_in_all_or_a_part_of_a_bin() -> None:
    """Logits of 8 bits, as bfloat16 has them, are mostly the former; beside each a few neighbours."""
    logits = rows_of(5000, 2 * len(SPECS)).bfloat16().float()
    logits[1::2, ::3] += 1e-4
    specs = [spec for spec in SPECS for _ in range(2)]
    check(logits, specs, list(islice(cycle(UNIFORMS), len(specs))))


@pytest.mark.usefixtures("same_weights")
def test_ends_of_what_is_kept() -> None:
    """The top k and no others reach what is counted; a top_k beyond the groups that bound it; a uniform that
    falls on the edge of a token."""
    vocab = 4097
    few = torch.full((vocab,), -1.0)
    few[: 64 * 64 : 64] = 0.0
    usual = rows_of(vocab, 1, ("usual",))[0]
    tied = torch.full((vocab,), -torch.inf)
    tied[[5, 4000, 4090, 4096]] = 0.0
    specs = [
        SamplingSpec(top_k=64, top_p=0.999),
        SamplingSpec(top_k=4090),
        SamplingSpec(),
        SamplingSpec(top_p=0.8),
    ]
    check(torch.stack([few, usual, tied, tied]), specs, [0.9999, 1.0, 0.5, 0.5])


@pytest.mark.usefixtures("same_weights")
@pytest.mark.parametrize("vocab", [31, 300, 1000, 1024, 2500])
def test_of_many_rows(vocab: int) -> None:
    chance = np.random.default_rng(vocab)
    ways = [
        SamplingSpec(
            temperature=float(chance.choice([0.1, 0.7, 1.0, 2.0])),
            top_p=float(chance.choice([1.0, 0.97, 0.9, 0.5, 1e-6])),
            top_k=int(chance.choice([0, 0, 1, 7, 64, 65, 500])),
            min_p=float(chance.choice([0.0, 0.0, 0.01, 0.4])),
        )
        for _ in range(MANY)
    ]
    check(rows_of(vocab, len(ways), seed=vocab), ways, chance.random(len(ways)).tolist())


@pytest.mark.usefixtures("same_weights")
def test_a_sampler_draws_what_the_cpu_s_does() -> None:
    """Rows that are taken as they are, changed ones, greedy ones and broken ones, in one step."""
    chance, vocab = np.random.default_rng(3), 83
    kinds = [
        SamplingSpec(temperature=0.0),
        SamplingSpec(top_p=0.9),
        SamplingSpec(top_k=5, repetition_penalty=1.5, presence_penalty=1.0),
        SamplingSpec(),
        SamplingSpec(logit_bias=((3, 4.0), (30, -7.0)), top_logprobs=2),
        SamplingSpec(temperature=0.7, top_p=0.8, min_tokens=3, end_ids=(0, 36)),
        SamplingSpec(top_p=0.5, top_k=20),
    ]
    batch = [
        Row(
            (chance.standard_normal(vocab) * 2).astype(np.float32), spec, float(chance.random()), (1, 3), (5,)
        )
        for spec in kinds
    ]
    batch[6].logits[9] = np.nan
    ours = draw(batch, sampler=Sampler(vocab, len(batch), DEVICE, TritonChooser(TritonDraws(vocab))))
    theirs = draw(batch)

    assert ours.tokens.tolist() == theirs.tokens.tolist()
    assert ours.non_finite == theirs.non_finite == (6,)
    assert ours.logprobs == theirs.logprobs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [1, 31, 64, 203, 2048, 5000])
def test_masked_logits_are_pytorch_s(vocab: int, dtype: torch.dtype) -> None:
    """Of rows that lie apart, and of no others."""
    wide = torch.randn(5, vocab + 7, generator=torch.Generator().manual_seed(vocab)).to(dtype).to(DEVICE)
    masks = masks_of(vocab, [0, 2, 3], seed=vocab)
    want, launches = wide.clone(), mock.MagicMock(wraps=TritonDraws(vocab).mask)
    NumpyChooser().mask(want[:, :vocab], masks)
    TritonChooser(mock.Mock(mask=launches)).mask(wide[:, :vocab], masks)
    assert torch.equal(wide, want)
    assert launches.call_count == 1


@pytest.mark.usefixtures("same_weights")
def test_a_sampler_draws_under_masks_what_the_cpu_s_does() -> None:
    """Equal logits, a single token, none: the row that may be none is told."""
    vocab, chance = 1003, np.random.default_rng(2)
    specs = [SamplingSpec(temperature=0.0), SamplingSpec(), SamplingSpec(top_p=0.9, top_logprobs=2)]
    rows = [
        Row(np.round(chance.standard_normal(vocab)).astype(np.float32), spec, float(chance.random()))
        for spec in specs * 4
    ]
    masks = masks_of(vocab, [0, 1, 2, 3, 4, 5, 7, 8], seed=5)
    masks.bits[3:6] = 0
    masks.bits[4:6, 31] = 1 << 10  # the last token but one
    ours = draw(
        rows, sampler=Sampler(vocab, len(rows), DEVICE, TritonChooser(TritonDraws(vocab))), masks=masks
    )
    theirs = draw(rows, masks=masks)
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    assert ours.tokens[[4, 5]].tolist() == [31 * 32 + 10] * 2
    assert ours.non_finite == theirs.non_finite == (3,)
    assert ours.logprobs == theirs.logprobs


def masks_of(vocab: int, rows: list[int], seed: int) -> TokenMasks:
    """Words of all bits, of none and of some; each row allows its first token."""
    chance = np.random.default_rng(seed)
    words = chance.integers(-(2**31), 2**31, (len(rows), -(-vocab // 32)))
    kind = chance.integers(0, 3, words.shape)
    bits = np.where(kind == 0, 0, np.where(kind == 1, -1, words)).astype(np.int32)
    bits[:, 0] |= 1
    return TokenMasks(np.array(rows, np.int32), bits)


@pytest.mark.parametrize("spec", [SPECS[0], SPECS[3], SPECS[8]])
def test_a_row_of_no_numbers_is_told_and_harms_no_other(spec: SamplingSpec) -> None:
    vocab, values = 5000, (np.nan, np.inf, -np.inf)
    sound = Row(np.random.default_rng(0).standard_normal(vocab).astype(np.float32), spec)
    broken = []
    for value, place in product(values, (0, vocab - 1)):
        logits = sound.logits.copy()
        logits[slice(None) if value == -np.inf else place] = value
        broken.append(Row(logits, spec))
    sampler = Sampler(vocab, 8, DEVICE, TritonChooser(TritonDraws(vocab)))
    drawn = draw([sound, *broken, sound], sampler=sampler)

    assert drawn.non_finite == tuple(range(1, 7))
    assert not drawn.tokens[1:7].any()
    assert drawn.tokens[0] == drawn.tokens[7]


class Watch(TorchDispatchMode):
    """`operations`: their names; `largest`: the most elements of a tensor they made."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = func(*args, **(kwargs or {}))
        self.operations.append(func.overloadpacket.__name__)
        if isinstance(answer, Tensor) and not func.is_view:
            self.largest = max(self.largest, answer.numel())
        return answer


def test_launches_are_few_and_no_tensor_is_as_large_as_logits() -> None:
    vocab = 40_000
    specs = [SamplingSpec(), SamplingSpec(top_p=0.9), SamplingSpec(top_k=9, min_p=0.1)]
    count = len(specs)
    draws, launched = TritonDraws(vocab), mock.MagicMock()  # the interpreter's own copies do not count
    draws._kernels = mock.Mock(BINS=draws._kernels.BINS, BLOCK=draws._kernels.BLOCK, draw_kernel=launched)
    sampler = Sampler(vocab, count, "cpu", TritonChooser(draws))
    for slot, spec in enumerate(specs):
        sampler.load(RowLoad(slot, spec, (), ()))
    logits, plan = torch.zeros(count, vocab), draw_plan(list(range(count)), [0] * count, [0.5] * count)
    with Watch() as seen:
        sampler.sample(logits, plan)
    copies = ("empty", "to", "lift_fresh", "detach")

    assert launched.__getitem__.call_count == 1
    assert [name for name in seen.operations if name not in copies] == ["masked_fill_", "index_copy_"]
    assert seen.largest <= 2 * 4096 * count < logits.numel()
