"""Operations of our own that torch's compiler calls and does not look into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

_library = torch.library.Library("millstream", "FRAGMENT")  # type: ignore[no-untyped-call]
_DIRECTLY = "called_"  # before the name of an operation: its Python function, in the same namespace
_defined: list[str] = []


def define(
    schema: str,
    run: Callable[..., torch.Tensor],
    shape: Callable[..., torch.Tensor],
    keys: Sequence[str] = ("CompositeExplicitAutograd",),
) -> None:
    """Make `torch.ops.millstream.<name of the schema>` compute `run`. `shape` answers an empty tensor of the
    shape that `run` answers. `keys`: torch's dispatch keys; the default is any device."""
    name = schema.partition("(")[0]
    tags = (torch.Tag.needs_exact_strides,)  # compiled code gives what the model's own would
    _library.define(schema, tags=tags)  # type: ignore[no-untyped-call]
    for key in keys:
        _library.impl(name, run, key)  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"millstream::{name}", shape, lib=_library)
    setattr(torch.ops.millstream, _DIRECTLY + name, run)
    _defined.append(name)


def call_directly() -> None:
    """Have compiled code call the functions of operations: by way of the operation each call took 5 us more.
    Raises AttributeError or ImportError where this torch's compiler cannot be told: then it goes that way."""
    from torch._inductor import ir, lowering  # takes seconds

    _ = ir.FallbackKernel.set_python_kernel_name  # else it would be missed in the middle of compiling
    for name in _defined:
        operation = getattr(torch.ops.millstream, name).default
        if operation not in lowering.lowerings:
            call = lowering.fallback_handler(operation, add_to_fallback_set=False)  # type: ignore[no-untyped-call]
            lowered = _lowered(call, operation, f"torch.ops.millstream.{_DIRECTLY}{name}")
            lowering.register_lowering(operation, type_promotion_kind=None)(lowered)


def _lowered(call: Callable[..., Any], operation: Any, function: str) -> Callable[..., Any]:
    from torch._inductor.virtualized import V

    def lowered(*args: Any) -> Any:
        nodes: Any = getattr(V.graph, "operations", [])
        begun = len(nodes)
        answer = call(*args)
        for node in nodes[begun:]:
            if getattr(node, "op_overload", None) is operation:
                node.set_python_kernel_name(function)
        return answer

    return lowered
