"""Weights that are quantised to FP8 when a model is loaded: of which, and how far products are off. The CPU
computes them here by the same operations of torch as a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch
from support.engine.whole_engine import engine_on
from support.models.checkpoints import logits, plain
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.pytorch_utils import Conv1D

from millstream_worker.engine.process import CannotLoad
from millstream_worker.engine.runner.gpu.gpu import Gpu
from millstream_worker.engine.runner.linear import float8_layers
from millstream_worker.engine.runner.linear.float8_layers import Float8Linear, quantized
from millstream_worker.engine.runner.linear.fused import fuse
from millstream_worker.engine.runner.linear.replace import replace_linear_layers, weight_bytes, weight_count
from millstream_worker.engine.runner.model.dtypes import check_weights
from millstream_worker.engine.runner.self_check.deviation import Mismatch, compare_logits
from millstream_worker.engine.runner.self_check.findings import Findings
from millstream_worker.engine.runner.self_check.product_check import check_products

CUDA = torch.device("cuda")
HOPPER = Gpu("H200", (9, 0), 2**37, 2**37)


def meant(rows: Tensor) -> Tensor:
    """Returns what is left of rows as codes."""
    codes, scales = quantized(rows)
    return codes.float() * scales


@torch.inference_mode()
def test_replaces_every_kind_but_the_head() -> None:
    class Scaled(nn.Linear):
        """Computes something else."""

    layer, conv, head = nn.Linear(32, 48), Conv1D(16, 32), nn.Linear(32, 16, bias=False)
    embedding = nn.Embedding(16, 32)
    head.weight = embedding.weight
    model = nn.ModuleList([embedding, layer, conv, Scaled(16, 16), nn.Linear(32, 17), head]).bfloat16()
    rows = torch.randn(2, 3, 32).bfloat16()
    want = linear(meant(rows), meant(layer.weight), layer.bias.float())

    said, kept = replace_linear_layers(model, None, "fp8", embedding, head)

    assert said == "linear layers: 2 fp8, 3 torch"
    assert kept == "not in 8 bits: 4.weight: [17, 32] is not divisible by 16"
    torch.testing.assert_close(model[1](rows).float(), want, atol=0.03, rtol=0.01)
    assert model[2](rows).shape == (2, 3, 16)
    assert getattr(layer, "weight", None) is None
    assert model[5] is head
    assert head.weight is embedding.weight
    others = 16 * 32 + 16 * 16 + 16 + 32 * 17 + 17
    assert weight_count(model) == 32 * 48 + 48 + 32 * 16 + 16 + others
    assert weight_bytes(model) == 32 * 48 + 4 * 48 + 2 * 48 + 32 * 16 + 4 * 16 + 2 * 16 + 2 * others


@torch.inference_mode()
def test_a_row_does_not_depend_on_others() -> None:
    layer = Float8Linear(torch.randn(64, 128).bfloat16(), None)
    rows = torch.randn(40, 128).bfloat16()
    rows[7], rows[8], rows[9] = 0, torch.nan, torch.inf
    together = layer(rows)
    sound = [number for number in range(40) if number not in (8, 9)]
    assert together[sound].isfinite().all()
    assert together[7].eq(0).all()
    assert not together[[8, 9]].isfinite().any()
    assert torch.equal(together[sound], layer(rows[sound]))


@torch.inference_mode()
def test_a_transposed_weight_is_laid_out_as_others() -> None:
    model = nn.ModuleList([Conv1D(48, 32), nn.Linear(32, 48)]).bfloat16()
    replace_linear_layers(model, None, "fp8")
    assert {(one.codes.shape, one.codes.stride()) for one in model} == {((48, 32), (32, 1))}


def test_a_layer_that_stays_is_told_once() -> None:
    model = nn.ModuleDict({name: nn.Linear(32, 17) for name in "qkv"})
    fuse(model, [("q", "k", "v")])
    _, *kept = replace_linear_layers(model, None, "fp8")
    assert kept == ["not in 8 bits: q.joint.weight: [51, 32] is not divisible by 16"]


@torch.inference_mode()
def test_logits_of_equal_models_are_close_enough() -> None:
    """Rounding that differs in the last bit of bfloat16 moves codes; another model is far away."""
    torch.manual_seed(0)
    shape = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 12, "vocab_size": 512}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.06}
    model = LlamaForCausalLM(LlamaConfig(**shape, **heads)).bfloat16().eval()
    replace_linear_layers(model, None, "fp8", model.get_input_embeddings(), model.lm_head)
    tokens = torch.arange(60)[None]
    want = model(tokens).logits[0]
    norms = [module for module in model.modules() if isinstance(module, LlamaRMSNorm)]
    hooks = [norm.register_forward_hook(lambda *call: call[2] * (1 + 2**-8)) for norm in norms[:-1]]
    off = compare_logits(model(tokens).logits[0], want, "it", float8_layers.FORMAT)
    assert off > 0
    for hook in hooks:
        hook.remove()
    for norm in norms[:-1]:
        norm.weight.neg_()
    with pytest.raises(Mismatch):
        compare_logits(model(tokens).logits[0], want, "it", float8_layers.FORMAT)


@torch.inference_mode()
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e15])
def test_scales_follow_the_size_of_a_row(size: float) -> None:
    rows = torch.randn(5, 64) * size
    assert (meant(rows) - rows).norm() < 0.04 * rows.norm()


@torch.inference_mode()
def test_fused_layers_are_one_product() -> None:
    model = nn.ModuleDict({name: nn.Linear(32, 16, bias=name == "x") for name in "qkv"}).bfloat16()
    rows = torch.randn(3, 32).bfloat16()
    want = {name: layer(rows) for name, layer in model.items()}
    fuse(model, [("q", "k", "v")])
    assert replace_linear_layers(model, None, "fp8")[0] == "linear layers: 1 fp8"
    for name, layer in model.items():
        assert (layer(rows) - want[name]).norm() < 0.08 * want[name].norm()


@pytest.mark.slow
@torch.inference_mode()
def test_compiled_layers_give_the_same(fresh_compiler: None) -> None:
    model = nn.Sequential(nn.RMSNorm(32).bfloat16(), Float8Linear(torch.randn(48, 32), None))
    rows = torch.randn(7, 32).bfloat16()
    got = torch.compile(model, fullgraph=True, dynamic=True)(rows)
    assert (got - model(rows)).norm() < 0.06 * got.norm()


@pytest.mark.parametrize("case", ["llama", "gpt2", "gemma2", "phi3-longrope"])
def test_logits_stay_close(case: str, checkpoint: Callable[[str], Path]) -> None:
    model, text = plain(checkpoint(case)).bfloat16(), list(range(3, 40))
    want = logits(model, text)
    said, *_ = replace_linear_layers(model, None, "fp8", model.get_input_embeddings(), model.lm_head)
    assert "fp8" in said
    assert (logits(model, text) - want).norm() < 0.3 * want.norm()  # two layers of random weights


def test_products_are_checked_by_shape() -> None:
    found: list[str] = []
    model = nn.Sequential(*(Float8Linear(torch.randn(size, 32), None) for size in (16, 16, 48)))
    check_products(model, Findings(found.append))
    assert [line.partition(":")[0] for line in found] == ["FP8 products checked"]
    check_products(nn.Linear(2, 2), Findings(found.append))
    assert len(found) == 1


def test_a_device_that_multiplies_wrongly_is_refused() -> None:
    model = Float8Linear(torch.randn(48, 32), None)
    model.scales[0, 5] *= 2
    layer = mock.Mock(
        wraps=float8_layers._product, side_effect=lambda *given: given[0].float() @ given[2].t().float()
    )
    with mock.patch.object(Float8Linear, "forward", lambda _, rows: layer(*quantized(rows), model.codes)):
        with pytest.raises(
            ValueError, match=r"weights 'fp8' do not work here: a product of 1 rows .*; use 'auto'"
        ):
            check_products(model, Findings(lambda _: None))


@pytest.mark.parametrize(
    ("dtype", "device", "gpu", "said"),
    [
        (torch.bfloat16, torch.device("cpu"), None, "on a GPU, this is cpu; use 'int8' or 'auto'"),
        (
            torch.bfloat16,
            CUDA,
            Gpu("A100", (8, 0), 1, 1),
            "8.9 or newer, this is A100, compute capability 8.0",
        ),
        (torch.bfloat16, CUDA, Gpu("MI300", (9, 4), 1, 1, "7.0"), "8.9 or newer, this is MI300, ROCm 7.0"),
        (torch.float16, CUDA, HOPPER, "in bfloat16, not in float16; set MILLSTREAM_DTYPE=bfloat16"),
    ],
)
def test_what_cannot_be_computed_is_refused(
    dtype: torch.dtype, device: torch.device, gpu: Gpu | None, said: str
) -> None:
    check_weights("fp8", torch.bfloat16, CUDA, HOPPER)
    with pytest.raises(ValueError, match=said):
        check_weights("fp8", dtype, device, gpu)


def test_the_cpu_is_told_at_start(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(
        CannotLoad, match="weights 'fp8' are computed on a GPU, this is cpu; use 'int8' or 'auto'"
    ):
        engine_on("cpu", checkpoint("llama"), weights="fp8")


def test_experts_are_refused(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match=r"weights 'fp8': .*experts.* holds experts"):
        replace_linear_layers(plain(checkpoint("mixtral")), None, "fp8")
