"""Holds all undocumented names of torch that the worker uses. tests/test_private_names.py checks that no
other file uses any, and that the installed torch has them."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import torch


def multiplies_bfloat16() -> bool:
    """True if torch has a bfloat16 kernel for this CPU; else it multiplies number by number."""
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # a torch without oneDNN
        return False


def release_pool(device: int, pool: Any) -> None:
    """Let go of a CUDA graph's memory pool after a capture that CUDA found invalid: torch takes it for one
    that is still recorded to, by a graph that will never release it. Raises RuntimeError for others."""
    torch._C._cuda_endAllocateToPool(device, pool)
    torch._C._cuda_releasePool(device, pool)


def generated_modules() -> list[ModuleType]:
    """The Python modules that the compiler has written and loaded in this process."""
    from torch._inductor.codecache import PyCodeCache  # takes seconds

    return list(PyCodeCache.modules)


def configure_compiler(cache: Path) -> None:
    """Keep compiled code in `cache`, which only its owner may write: torch unpickles what is there. Its own
    headers, 150 MB that are the same for all models, lie beside, not in a folder that all users share."""
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    from torch._dynamo import config  # takes seconds
    from torch._inductor import codecache

    codecache._HEADER_DIR = str(cache.parent / "headers")
    codecache._HEADER_LOCK_DIR = str(cache.parent / "headers" / "locks")
    config.specialize_float = True  # else each number of a module is an input


def compiler_options(*, combo_kernels: bool) -> dict[str, Any]:
    """Returns the options of torch.compile for its own backend. `combo_kernels`: one launch for what is done
    to queries and to keys; only for a GPU."""
    return {
        "compile_threads": 1,  # no pool of processes beside the engine's
        "combo_kernels": combo_kernels,
        "cpp.vec_isa_ok": True,  # else a process is started to try each instruction set
        "size_asserts": False,  # 0.3 us for each tensor of a layer
        "post_grad_custom_pre_pass": _shared_results(),
    }


def _shared_results() -> Any:
    """Returns the pass that has equal operations of a graph computed once: the parts of fused linear layers
    each ask for the product of all of them."""
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
    from torch.fx import Graph, Node

    class SharedResults(CustomGraphPass):
        def __call__(self, graph: Graph) -> None:
            first: dict[tuple[Any, ...], Node] = {}
            for node in list(graph.nodes):
                if node.op == "call_function" and not node.is_impure():
                    other = first.setdefault((node.target, str(node.args), str(node.kwargs)), node)
                    if other is not node:
                        node.replace_all_uses_with(other)
                        graph.erase_node(node)

        def uuid(self) -> bytes:
            return get_hash_for_files((__file__,))

    return SharedResults()
