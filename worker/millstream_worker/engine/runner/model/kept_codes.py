"""Quantised safetensors of dense models in their own bits on the CPU: converted once into the form that GGUF
files become, kept in the cache folder, found again by content."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from millstream_worker.engine.protocol.config import cache_folder
from millstream_worker.engine.runner.checkpoint.checkpoint import Checkpoint
from millstream_worker.engine.runner.checkpoint.conversion_cache import kept_folder
from millstream_worker.engine.runner.checkpoint.model_digest import digest_of
from millstream_worker.engine.runner.checkpoint.quantized.dense import forms_of, open_dense
from millstream_worker.engine.runner.checkpoint.quantized.own_bits import code_bytes, codes_of, has_codes
from millstream_worker.engine.runner.model.weights import check_memory, named_faults
from millstream_worker.engine.runner.model_config.model_types import HEADED
from millstream_worker.engine.runner.model_config.support import UnsupportedModel
from millstream_worker.engine.runner.model_config.text_half import own_names, text_class
from millstream_worker.engine.runner.quantization.packed import PackedWeights, named, write_packed
from millstream_worker.engine.runner.quantization.weight_codes import WeightCodes

_FORM = "1"  # of what is kept: with another one everything is converted anew
_CPU = torch.device("cpu")


def kept_codes(
    folder: str,
    config: PretrainedConfig,
    whole: PretrainedConfig,
    settings: Mapping[str, Any],
    dtype: torch.dtype,
    cache_dir: str,
    report: Callable[[str], None],
    mark: Callable[[], None],
) -> tuple[Path | None, str]:
    """Returns a folder that `load_packed` reads, and a line for the log, each with nothing where there is
    none: no weight has a format whose codes are computed, or the model is a mixture, whose experts are no
    linear layers. `settings`: the configuration's quantization_config. Raises `UnsupportedModel`."""
    with named_faults(config, folder), open_dense(Path(folder), settings, dtype, _CPU) as stored:
        names = own_names(config, whole, stored)
        if not any(has_codes(stored[name]) for name in names):
            return None, ""
        weights = {own: stored[name] for name, own in names.items()}
        modules = _modules(config, whole)
        if not modules or any(name not in weights for name in modules):
            taken = sum(prod(weight.get_shape()) for weight in weights.values()) * dtype.itemsize
            form = str(dtype).removeprefix("torch.")
            return None, f"weights in {form}, {taken / 1e9:,.1f} GB: own bits are computed of dense models"
        weights = {name: weights[name] for name in modules}
        codes = {name for name, module in modules.items() if module is nn.Linear and has_codes(weights[name])}
        needed = sum(_bytes(weight, dtype, name in codes) for name, weight in weights.items())
        check_memory(needed, "its own bits", _CPU)
        source = Path(folder).resolve()
        kept = cache_folder(cache_dir) / "quantised" / f"{source.name}-{_digest(source, dtype)}"

        def make(partial: Path) -> None:
            partial.mkdir()
            write_packed(partial, _packed(weights, codes, dtype, mark))

        try:
            return kept_folder(kept, source.name, make, report), ""
        except OSError as error:
            raise UnsupportedModel(
                f"{folder}: its weights cannot be kept in {kept.parent}: {error}; free space, set "
                "MILLSTREAM_CACHE_DIR to another folder, or MILLSTREAM_DTYPE to have them dequantised"
            ) from error


def _modules(config: PretrainedConfig, whole: PretrainedConfig) -> dict[str, type[nn.Module]]:
    """Returns the types of the modules that have the model's weights, by their names, but for a tied head's;
    none of a model that is put together here."""
    if config.model_type in HEADED:
        return {}
    with torch.device("meta"):
        model: PreTrainedModel = text_class(config, whole)._from_config(config)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    return {
        name: type(model.get_submodule(name.rpartition(".")[0]))
        for name in model.state_dict()
        if name not in tied
    }


def _bytes(weight: Any, dtype: torch.dtype, as_codes: bool) -> int:
    return code_bytes(weight) if as_codes else prod(weight.get_shape()) * dtype.itemsize


def _digest(folder: Path, dtype: torch.dtype) -> str:
    digest = digest_of(Checkpoint(folder, folder.name, folder, folder))
    return hashlib.sha256(f"{digest} {dtype} {_FORM}".encode()).hexdigest()[:16]


def _packed(
    weights: Mapping[str, Any], codes: set[str], dtype: torch.dtype, mark: Callable[[], None]
) -> PackedWeights:
    found: dict[str, WeightCodes] = {}
    others: dict[str, Tensor] = {}
    own: Counter[str] = Counter()
    for name, weight in weights.items():
        mark()
        if name in codes and (one := codes_of(weight)) is not None:
            found[name] = one
            own[weight.format.form] += prod(weight.get_shape())
        else:
            others[name] = weight[...].contiguous()
    form = str(dtype).removeprefix("torch.")
    dense = forms_of({name: weights[name] for name in others})
    return PackedWeights(
        found, others, "+".join(filter(None, (named(own), dense and f"{form} from {dense}")))
    )
