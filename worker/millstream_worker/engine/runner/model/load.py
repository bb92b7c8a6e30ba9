"""Loads a model and connects its attention modules to their storage. Knows transformers' models; knows
nothing of rows.

The modelling code is transformers' own. Its attention modules call the function registered here, which
hands the packed step to what `occupy` put into the module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from millstream_worker.engine.protocol.frames import LoadStep
from millstream_worker.engine.runner.attention.custom_op import ATTENTIONS, Attention, attend
from millstream_worker.engine.runner.attention.interface import AttentionBackend
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec, kv_name
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.linear.fused import fuse
from millstream_worker.engine.runner.linear.replace import (
    replace_linear_layers,
    weight_bytes,
    weight_count,
)
from millstream_worker.engine.runner.model.anatomy import Anatomy, observe
from millstream_worker.engine.runner.model.attention_choice import choose
from millstream_worker.engine.runner.model.dtypes import check_weights
from millstream_worker.engine.runner.model.kept_codes import kept_codes
from millstream_worker.engine.runner.model.kv_choice import in_format
from millstream_worker.engine.runner.model.model_heads import ModelHeads
from millstream_worker.engine.runner.model.packed_model import load_packed
from millstream_worker.engine.runner.model.weights import check_finite, load_weights
from millstream_worker.engine.runner.model_config import support
from millstream_worker.engine.runner.model_config.config_file import end_ids, load_config
from millstream_worker.engine.runner.model_config.quantization import without_quantization
from millstream_worker.engine.runner.native.library import Library
from millstream_worker.engine.runner.quantization.packed import is_packed
from millstream_worker.engine.runner.states.functions import connect_states
from millstream_worker.engine.runner.states.spec import StateSpec
from millstream_worker.engine.runner.states.state_backend import StateBackend
from millstream_worker.engine.runner.states.state_storage import StateStorage

if TYPE_CHECKING:
    from millstream_worker.engine.runner.gpu.gpu import Gpu

ATTENTION = "millstream"  # our name among transformers' attention functions
_SLOT = "paged_attention"  # the attribute through which an attention module finds its layer
_NUMBER = "paged_attention_number"  # the one through which its compiled code does


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model on its device, and the facts about it that the engine asks for."""

    model: PreTrainedModel
    anatomy: Anatomy
    heads: ModelHeads  # with its body
    architecture: str
    attention: str  # backend: torch | native | triton
    attend_over: Callable[[KVStorage], AttentionBackend]  # makes the backend
    advance_over: Callable[[StateStorage], StateBackend]  # makes that of recurrent states
    library: Library | None  # native code, on a CPU that has a compiler
    context_length: int  # most tokens of a row
    eos_ids: tuple[int, ...]
    parameters: int
    dtype: torch.dtype
    weights: str  # their format
    weight_bytes: int
    device: torch.device
    notes: tuple[str, ...] = ()  # what the operator should know
    fallbacks: tuple[str, ...] = ()  # those of the notes that say what is slower than it could be

    @property
    def layer_specs(self) -> tuple[LayerSpec, ...]:
        """Returns what the attention of each layer computes."""
        return self.anatomy.layer_specs

    @property
    def state_specs(self) -> tuple[StateSpec, ...]:
        """Returns what each module with a recurrent state keeps of a row; of most models there are none."""
        return self.anatomy.state_specs

    @property
    def rounded_to(self) -> torch.dtype:
        """Returns the type that rows are rounded to on their way through the layers."""
        return torch.float8_e4m3fn if self.weights.startswith("fp8") else self.dtype

    @property
    def kv_format(self) -> str:
        """Returns the format of keys and values, as "bfloat16", "int8", or "int8+bfloat16" for both."""
        return kv_name(self.layer_specs, self.dtype)

    @property
    def vocab_size(self) -> int:
        """Returns the width of the logits."""
        return self.anatomy.vocab_size


def load_model(
    folder: str,
    *,
    dtype: torch.dtype,
    device: torch.device,
    attention: str = "auto",
    weights: str = "auto",
    kv_dtype: str = "auto",
    cache_dir: str = "",
    gpu: Gpu | None = None,
    report: Callable[[str], None] = lambda line: None,
    mark: Callable[[], None] = lambda: None,
) -> LoadedModel:
    """Returns the model of a folder with config.json and safetensors. `report` is told what takes long,
    `mark` is called with each weight read. What its attention compiles is kept in `cache_dir` ("":
    ~/.cache/millstream). `weights`: auto, as in the checkpoint; int8; fp8; or dequantized. `kv_dtype`: of
    keys and values, auto or int8.

    Raises `UnsupportedModel` for a model that would not be computed correctly or lacks weights, and
    ValueError for an attention backend, weights, or keys and values, that device or model do not have.
    """
    check_weights(weights, dtype, device, gpu)
    chosen = choose(attention, device, dtype, cache_dir, gpu, report, mark)
    report(LoadStep.WEIGHTS)
    whole = load_config(folder)
    config = support.check(whole)
    support.check_device(config, device.type)
    context_length = support.context_length(config)
    eos_ids = end_ids(folder, config)
    AttentionInterface.register(ATTENTION, _attend)
    # In FP8 layers go to the GPU one by one: in the checkpoint's type the model may be too large for it.
    read_to = torch.device("cpu") if weights == "fp8" else device
    left_out = forms = not_own = ""
    as_codes = weights == "auto" and device.type == "cpu"
    settings = without_quantization(config, whole)
    packed = Path(folder) if is_packed(Path(folder)) else None
    if packed is None and as_codes:
        packed, not_own = kept_codes(folder, config, whole, settings, dtype, cache_dir, report, mark)
    if packed is not None:
        model, form = load_packed(
            str(packed), config, dtype, read_to, ATTENTION, mark, as_codes=as_codes, library=chosen.library
        )
    else:
        read = load_weights(folder, config, dtype, read_to, ATTENTION, report, mark, whole, settings)
        model, forms, left_out = read.model, read.forms, read.left_out
        form = str(dtype).removeprefix("torch.")
    anatomy = observe(model, ATTENTION)
    if not anatomy.finite:
        check_finite(folder, model)
    anatomy = replace(anatomy, layer_specs=in_format(kv_dtype, anatomy.layer_specs, config))
    fuse(model, anatomy.siblings)
    parameters = weight_count(model)
    vocabulary = model.get_input_embeddings(), model.get_output_embeddings()
    linear_layers, *kept = replace_linear_layers(model, chosen.library, weights, *vocabulary, device)
    model = model.to(device)
    if weights in ("int8", "fp8"):
        form = f"{weights}+{form}" if kept else weights
    if forms:
        form = f"{form} from {forms}"
    held = weight_bytes(model)
    weight_line = f"weights: {form}, {held / 1e6:,.1f} MB, {8 * held / parameters:.2f} bits each"
    note = support.context_note(config)
    attention_line = f"attention: {chosen.reason}"
    return LoadedModel(
        model=model,
        anatomy=anatomy,
        heads=ModelHeads(model, anatomy),
        architecture=type(model).__name__,
        attention=chosen.name,
        attend_over=chosen.build,
        advance_over=chosen.build_states,
        library=chosen.library,
        context_length=context_length,
        eos_ids=eos_ids,
        parameters=parameters,
        dtype=dtype,
        weights=form,
        weight_bytes=held,
        device=device,
        notes=(*filter(None, (left_out, not_own, note)), attention_line, linear_layers, *kept, weight_line),
        fallbacks=(attention_line,) if chosen.fallback else (),
    )


def connect(
    loaded: LoadedModel,
    backend: AttentionBackend,
    mark: Callable[[], None],
    states: StateBackend | None = None,
) -> None:
    """Have each attention module compute its layer by `backend`, and each module with a recurrent state by
    `states`, which want `begin` before each forward; `mark` is called with each layer."""
    if states is not None:
        for number, module in enumerate(loaded.anatomy.state_modules):
            connect_states(module, states.layer(number), mark)
    for layer, module in enumerate(loaded.anatomy.attention_modules):
        occupy(module, _attention_of(backend, layer, mark))


def _attention_of(backend: AttentionBackend, layer: int, mark: Callable[[], None]) -> Attention:
    def compute(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> Tensor:
        mark()
        return backend.attend(layer, query, key, value, sinks)

    return compute


def occupy(module: nn.Module, attention: Attention) -> None:
    """Have an attention module, run by Python or compiled, call `attention`."""
    setattr(module, _SLOT, attention)
    setattr(module, _NUMBER, ATTENTIONS.register(attention))


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, **options: Any
) -> tuple[Tensor, None]:
    """Computes an attention module's call, [1, heads, T, head_dim] each; returns [1, T, heads, head_dim].

    Transformers makes no mask, as no mask function has our name; some modules hand that over by its name, and
    not by its place. But for the sinks, `options` are the constants that were seen when the model was loaded.
    """
    query, key, value = query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1)
    sinks = options.get("s_aux")
    if torch.compiler.is_compiling():
        out = attend(query, key, value, sinks, getattr(module, _NUMBER))
    else:  # an operation written in Python costs more than the call
        out = getattr(module, _SLOT)(query, key, value, sinks)
    return out.unsqueeze(0), None
