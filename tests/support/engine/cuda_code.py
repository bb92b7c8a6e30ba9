"""What torch's compiler writes for a GPU that is not here: a model of fake tensors is compiled as the engine
does it, and the code is counted, not run. This changes torch for good, so it is a program of its own:
`python -m support.engine.cuda_code llama` prints the launches of one layer, beside those of its attention."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import compile_fx
from torch._inductor.fx_passes import joint_graph, post_grad
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, PretrainedConfig
from triton.backends.compiler import GPUTarget

from millstream_worker.engine.runner.compiled import compile as compiled
from millstream_worker.engine.runner.linear.fused import fuse
from millstream_worker.engine.runner.model import load
from millstream_worker.engine.runner.model.anatomy import observe
from millstream_worker.engine.runner.model.model_heads import ModelHeads

SIZES = {  # of Llama-3-8B, but for the vocabulary
    "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "num_hidden_layers": 3, "vocab_size": 1024,
}  # fmt: skip
_DEVICE = torch.device("cuda", 0)
_H200 = SimpleNamespace(
    name="NVIDIA H200", gcnArchName="", total_memory=140 << 30, L2_cache_size=50 << 20,
    major=9, minor=0, multi_processor_count=132, warp_size=32, regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048, max_threads_per_block=1024, shared_memory_per_block_optin=232448,
)  # fmt: skip
_LAUNCH = re.compile(r"(\w+)\.run\(|(extern_kernels\.\w+)\(|(torch\.ops\.millstream\.attend)\.default\(")


class _Written(Exception):
    """The compiler has written the code."""


def layer_launches(config: PretrainedConfig) -> list[list[str]]:
    """The names of what the code of one layer launches, in their order, for any number of tokens, and for a
    single one. Attention stands as one of them."""
    pretend_gpu()
    codes: list[str] = []
    compile_graph = compile_fx.compile_fx

    def write(lowering: GraphLowering) -> None:
        codes.append(lowering.codegen()[0].value)
        raise _Written

    def backend(graph: torch.fx.GraphModule, *args: Any, **options: Any) -> Any:
        written = len(codes)
        try:
            compile_graph(graph, *args, **options)
        except Exception:
            if len(codes) == written:
                raise
        return graph.forward

    with (
        torch.compiler.config.patch(force_disable_caches=True),
        mock.patch.object(GraphLowering, "compile_to_module", write),
        mock.patch.object(compile_fx, "compile_fx", backend),
        mock.patch.object(compiled, "compare_logits", return_value=0.0),  # fake ones have no values
        tempfile.TemporaryDirectory() as folder,
        FakeTensorMode(),
    ):
        compiled.compile_model(_fake_model(config), Path(folder), lambda message: None)
    return [_of_layer(code) for code in codes]


def _of_layer(code: str) -> list[str]:
    """Those of the function that calls attention, of which the code has one for each kind of layer."""
    functions = re.split(r"\n(?:    )?def ", code)
    [layer] = [body for body in functions if "torch.ops.millstream.attend" in body]
    return ["".join(names) for names in _LAUNCH.findall(layer)]


def _fake_model(config: PretrainedConfig) -> load.LoadedModel:
    """What `load_model` would load onto the GPU."""
    AttentionInterface.register(load.ATTENTION, load._attend)
    options = {"dtype": torch.bfloat16, "attn_implementation": load.ATTENTION}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, **options).eval()
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            there = torch.empty_like(weight, device=_DEVICE)
            module._parameters[name] = torch.nn.Parameter(there, requires_grad=False)
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = torch.empty_like(buffer, device=_DEVICE)
    anatomy = observe(model, load.ATTENTION)
    fuse(model, anatomy.siblings)
    return load.LoadedModel(
        model=model, anatomy=anatomy, heads=ModelHeads(model, anatomy), architecture=type(model).__name__,
        attention="triton", attend_over=mock.Mock(), library=None, context_length=1, eos_ids=(),
        parameters=0, dtype=torch.bfloat16, weights="bfloat16", weight_bytes=0, device=_DEVICE,
    )  # fmt: skip


def pretend_gpu() -> None:
    """Have torch take this machine for one with an H200."""
    answers = {
        "is_available": True, "device_count": 1, "current_device": 0, "_exchange_device": 0,
        "_maybe_exchange_device": 0, "_get_device_properties": _H200, "_lazy_init": None, "synchronize": None,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8), "set_rng_state": None,
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(torch.cuda, name, mock.Mock(return_value=answer))
    for name in ("current_device", "device_count"):
        setattr(CudaInterface, name, staticmethod(getattr(torch.cuda, name)))
    CudaInterface.device = mock.MagicMock()
    joint_graph.lazy_init = post_grad.lazy_init = lambda *_: None  # they compute examples on the GPU
    FakeTensor.__getitem__ = FunctionalTensor.__getitem__ = _item
    target = GPUTarget("cuda", 90, warp_size=32)
    triton.runtime.driver.set_active(mock.Mock(get_current_target=lambda: target))


def _item(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """tensor[index]; torch's own asks the GPU."""
    parts, dim = index if isinstance(index, tuple) else (index,), 0
    if Ellipsis in parts:
        place = parts.index(Ellipsis)
        missing = tensor.dim() + 1 - sum(part is not None for part in parts)
        parts = (*parts[:place], *[slice(None)] * missing, *parts[place + 1 :])
    for part in parts:
        if isinstance(part, int):
            tensor = tensor.select(dim, part)
            continue
        if part is None:
            tensor = tensor.unsqueeze(dim)
        elif isinstance(part, slice):
            tensor = torch.ops.aten.slice(tensor, dim, part.start, part.stop, part.step or 1)
        else:
            tensor = torch.ops.aten.index(tensor, [None] * dim + [part])
        dim += 1
    return tensor


if __name__ == "__main__":
    print(json.dumps(layer_launches(AutoConfig.for_model(sys.argv[1], **SIZES))))
