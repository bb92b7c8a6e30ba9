"""Linear layers in compiled code, multiplied by the compiler's own kernels: on processors with AMX.

Torch's compiler writes such products itself, in C++, for constant weights only, and so compiles each layer of
a model anew. Here the weights are arguments, laid out beforehand as its kernels read them, so that all layers
share their code. On two cores of a Xeon with AMX the linear layers of a 135M model took 0.6 of the time that
oneDNN takes for them, with one row and with 32; 0.8 with 512 rows, 1.08 with 2,048. This leans on names that
torch does not promise: where they have changed, compiled layers call oneDNN as before.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from millstream_worker.engine.runner.custom_ops import define
from millstream_worker.engine.runner.packed import PackedLinear
from millstream_worker.engine.runner.precision import has_amx

_ROWS = (1, 61)  # the kernels for one row and for many have to read the same layout


class BlockedLinear(nn.Module):
    """What `PackedLinear` computes. Outside of compiled code it is slow."""

    def __init__(self, layer: PackedLinear, kernel: Any) -> None:
        """`layer` as `kernel`, one of the compiler's for products, reads it."""
        from torch._inductor.codegen.cpp_gemm_template import CppGemmTemplate

        super().__init__()
        self.out_features, self.in_features = layer.out_features, layer.in_features
        nothing: Any = None
        _, blocked = CppGemmTemplate.prep_weight(
            [nothing, layer.weight.t()], nothing, kernel, True, skip_int8_compensation=True
        )[0]
        self.blocked = nn.Parameter(blocked, requires_grad=False)
        self.bias = layer.bias
        self.train(layer.training)

    @property
    def weight(self) -> torch.Tensor:
        """A copy [out_features, in_features], for model code that does more with a layer than to call it."""
        return _weight(self.blocked, self.out_features)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = torch.ops.millstream.blocked_linear.default(
            rows, self.blocked, self.bias, self.out_features
        )
        return answer


def usable(device: torch.device) -> bool:
    """Whether the device multiplies matrices by AMX. Without it the compiler's kernels compute in float32."""
    return device.type == "cpu" and has_amx()


def block(layer: nn.Module) -> None:
    """Replace the packed linear layers inside of a model's layer that the compiler has a kernel for."""
    _replace(layer, PackedLinear, _blocked)


def unblock(layer: nn.Module) -> None:
    """Undo `block`."""
    _replace(layer, BlockedLinear, lambda linear: PackedLinear(linear.weight, linear.bias))


def lower() -> None:
    """Have the compiler write the products of blocked layers."""
    from torch._inductor import ir, lowering
    from torch._inductor.codegen.cpp_gemm_template import CppGemmTemplate
    from torch._inductor.utils import parallel_num_threads

    def linear(rows: Any, blocked: Any, bias: Any, out_features: int) -> Any:
        *sizes, width = rows.get_size()
        flat = ir.ExternKernel.realize_input(lowering.view(rows, [-1, width]))
        flat = ir.ExternKernel.require_contiguous(flat)
        shape = [flat.get_size()[0], out_features]
        kernel = _chosen(shape[0], out_features, int(width))
        assert kernel.register_blocking.block_n == blocked.get_size()[2]
        choices: list[Any] = []
        CppGemmTemplate(
            [flat, blocked],
            ir.FixedLayout(flat.get_device_or_error(), flat.get_dtype(), shape),
            parallel_num_threads(),
            kernel.register_blocking,
            name=type(kernel).__name__,
        ).maybe_append_choice(choices)
        answer = lowering.view(choices[0].output_node(), [*sizes, out_features])
        return answer if bias is None else lowering.add(answer, bias)

    lowering.register_lowering(torch.ops.millstream.blocked_linear.default, type_promotion_kind=None)(linear)


def _replace(layer: nn.Module, kind: type[nn.Module], make: Callable[[Any], nn.Module]) -> None:
    """What is in several places is made once."""
    made: dict[nn.Module, nn.Module] = {}
    for parent in list(layer.modules()):
        for name, linear in list(parent.named_children()):
            if isinstance(linear, kind):
                if linear not in made:
                    made[linear] = make(linear)
                setattr(parent, name, made[linear])


def _blocked(linear: PackedLinear) -> nn.Module:
    kernel = _kernel(linear)
    return linear if kernel is None else BlockedLinear(linear, kernel)


def _kernel(layer: PackedLinear) -> Any:
    """The compiler's for this layer and any number of rows; None where it has none for AMX, or the layout
    would depend on the rows."""
    from torch._inductor.codegen.cpp_micro_gemm import CppMicroGemmAMX
    from torch._inductor.virtualized import V

    if layer.packed.dtype != torch.bfloat16:
        return None
    hints = SimpleNamespace(optimization_hint=lambda rows, fallback: rows)
    graph: Any = SimpleNamespace(sizevars=hints)  # all that a choice by numbers asks of one
    with V.set_graph_handler(graph):
        one, many = (_chosen(rows, layer.out_features, layer.in_features) for rows in _ROWS)
    same = one.register_blocking.block_n == many.register_blocking.block_n
    return one if same and isinstance(one, CppMicroGemmAMX) and isinstance(many, CppMicroGemmAMX) else None


def _chosen(rows: Any, out_features: int, in_features: int) -> Any:
    from torch._inductor.codegen.cpp_micro_gemm import create_micro_gemm
    from torch._inductor.utils import parallel_num_threads

    kernel: Any = create_micro_gemm(
        "kernel",
        rows,
        out_features,
        in_features,
        input_dtype=torch.bfloat16,
        input2_dtype=torch.bfloat16,
        output_dtype=torch.float32,
        compute_dtype=torch.float32,
        num_threads=parallel_num_threads(),
    )
    kernel.use_local_vnni_blocking(False)
    return kernel


def _weight(blocked: torch.Tensor, out_features: int) -> torch.Tensor:
    """[out, in] of [out / n, in, n], in which two numbers of a column lie side by side."""
    count, width, size = blocked.shape
    columns = blocked.view(count, width // 2, size, 2).transpose(1, 2).reshape(count * size, width)
    return columns[:out_features].contiguous()


def _multiply(
    rows: torch.Tensor, blocked: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> torch.Tensor:
    return functional.linear(rows, _weight(blocked, out_features), bias)


def _shaped(
    rows: torch.Tensor, blocked: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> torch.Tensor:
    return rows.new_empty(*rows.shape[:-1], out_features)


define(
    "blocked_linear(Tensor rows, Tensor blocked, Tensor? bias, int out_features) -> Tensor",
    _multiply,
    _shaped,
    ("CPU",),
)
