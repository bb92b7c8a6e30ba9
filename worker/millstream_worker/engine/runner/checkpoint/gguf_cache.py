"""GGUF files as checkpoints: converted once, kept as safetensors, found again by content. Quantised weights
keep their own bits (`packed`) where these can be computed, else they are dequantised. A converted one is
<cache>/<stem>-<digest>/: config, generation config, weights, tokenizer with its chat template.
"""

from __future__ import annotations

import contextlib
import io
import struct
from pathlib import Path
from typing import Any

import torch
import transformers

from millstream_worker.engine.runner.checkpoint.conversion_cache import Report, kept_folder
from millstream_worker.engine.runner.checkpoint.gguf_header import check_header
from millstream_worker.engine.runner.checkpoint.gguf_weights import GGUFError, GGUFWeights, check_whole
from millstream_worker.engine.runner.checkpoint.model_digest import digest_of_file
from millstream_worker.engine.runner.quantization.packed import write_packed

_FORM = b"5"  # of what is kept: with another one everything is converted anew
_UNREADABLE = (  # what the readers of GGUF raise for a file that is not what it says
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, struct.error,
)  # fmt: skip


class GGUFCache:
    """The converted files in one folder, which any number of processes may share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def folder_of(self, file: Path, report: Report) -> Path:
        """The checkpoint made from a GGUF file; makes it if that was not done before. Raises GGUFError."""
        try:
            kept = self._folder / f"{file.stem}-{digest_of_file(file, _FORM)[:16]}"
            return kept_folder(kept, file.name, lambda partial: _convert(file, partial), report)
        except OSError as error:
            raise GGUFError(f"it cannot be converted into {self._folder}: {error}") from error


def _convert(file: Path, partial: Path) -> None:
    try:
        check_header(file)
    except ValueError as error:
        raise GGUFError(str(error)) from error
    try:
        _write(file, partial)
    except _UNREADABLE as error:
        raise GGUFError(f"no GGUF file that transformers can read: {error!r}") from error


def _write(file: Path, folder: Path) -> None:
    """Write the file's model and tokenizer as transformers' own save_pretrained lays them out."""
    source: dict[str, Any] = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    weights = GGUFWeights(file)
    with contextlib.redirect_stderr(io.StringIO()):  # progress bars that have no switch
        if weights.quantized:
            _write_packed(weights, source, folder)
        else:
            _write_dequantized(weights, source, folder)
        transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    if ends := weights.end_ids:  # transformers reads only the first
        generation = transformers.GenerationConfig.from_pretrained(folder)
        generation.eos_token_id = ends if len(ends) > 1 else ends[0]
        generation.save_pretrained(folder)


def _write_packed(weights: GGUFWeights, source: dict[str, Any], folder: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(**source)
    weights.set_positions(config)
    packed = weights.packed(config)
    config.dtype = weights.dtype
    folder.mkdir()
    config.save_pretrained(folder)
    transformers.GenerationConfig.from_model_config(config).save_pretrained(folder)
    write_packed(folder, packed)


def _write_dequantized(weights: GGUFWeights, source: dict[str, Any], folder: Path) -> None:
    options = source | {"dtype": weights.dtype}
    if hasattr(transformers, "GgufConfig"):  # newer ones would keep the weights packed
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    loaded, found = transformers.AutoModelForCausalLM.from_pretrained(**options, output_loading_info=True)
    check_whole(found["missing_keys"])
    weights.set_positions(loaded.config)
    with torch.device("meta"):  # what was read from GGUF refuses to be saved: move its weights over
        model = transformers.AutoModelForCausalLM.from_config(loaded.config, dtype=loaded.dtype)
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = loaded.generation_config
    model.save_pretrained(folder)
