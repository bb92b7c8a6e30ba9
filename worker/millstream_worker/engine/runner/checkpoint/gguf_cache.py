"""GGUF files as transformers checkpoints: dequantised once, kept as safetensors, found again by content.

<cache>/<stem>-<digest>/          config, generation config, weights, tokenizer with its chat template
<cache>/<stem>-<digest>.lock      held by the process that converts
<cache>/<stem>-<digest>.partial/  a conversion under way, or what a killed one left
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from filelock import FileLock
from gguf import GGUFReader

Report = Callable[[str], None]

_FORM = b"1"  # of what is kept: with another one everything is converted anew
_HEAD_BYTES = 16 * 2**20  # hashed whole: the metadata with vocabulary and chat template comes first
_PIECES, _PIECE_BYTES = 64, 2**16  # hashed of the rest, evenly spread, and the end
_UNREADABLE = (  # what the readers of GGUF raise for a file that is not what it says
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, struct.error,
)  # fmt: skip


class GGUFError(Exception):
    """The file cannot be converted, or its conversion cannot be kept. The message says why."""


class GGUFCache:
    """The converted files in one folder, which any number of processes may share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def folder_of(self, file: Path, report: Report) -> Path:
        """The checkpoint made from a GGUF file; makes it if that was not done before. Raises GGUFError."""
        try:
            kept = self._folder / f"{file.stem}-{_digest(file)}"
            if kept.is_dir():
                return kept
            self._folder.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{kept}.lock"):
                if not kept.is_dir():  # else another process has made it while this one waited
                    _convert(file, kept, report)
        except OSError as error:
            raise GGUFError(f"it cannot be converted into {self._folder}: {error}") from error
        return kept


def _convert(file: Path, kept: Path, report: Report) -> None:
    partial = kept.with_name(kept.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    report(f"converting {file.name} to safetensors; this is done once, and kept in {kept}")
    try:
        _write(file, partial)
        partial.rename(kept)
    except _UNREADABLE as error:
        raise GGUFError(f"no GGUF file that transformers can read: {error!r}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # half a model on a disk that may be full by it


def _write(file: Path, folder: Path) -> None:
    """Write the file's model and tokenizer as transformers' own save_pretrained lays them out."""
    source: dict[str, Any] = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    weights = source | {"dtype": _dtype(file)}
    if hasattr(transformers, "GgufConfig"):  # newer ones would keep the weights packed
        weights["quantization_config"] = transformers.GgufConfig(dequantize=True)
    with contextlib.redirect_stderr(io.StringIO()):  # progress bars that have no switch
        loaded, found = transformers.AutoModelForCausalLM.from_pretrained(**weights, output_loading_info=True)
        _check_whole(found)
        with torch.device("meta"):  # what was read from GGUF refuses to be saved: move its weights over
            model = transformers.AutoModelForCausalLM.from_config(loaded.config, dtype=loaded.dtype)
        model.load_state_dict(loaded.state_dict(), assign=True)
        model.tie_weights()
        model.generation_config = loaded.generation_config
        model.save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


def _check_whole(found: dict[str, Any]) -> None:
    """Transformers goes on with random numbers for what a file does not have."""
    missing = sorted(found["missing_keys"])
    if missing:
        raise GGUFError(
            f"it lacks {len(missing)} of the model's weights, the first is {missing[0]}; "
            "if the model was split into several GGUF files, merge them first (llama-gguf-split --merge)"
        )


def _dtype(file: Path) -> torch.dtype:
    """The floating type that most of the file's weights have; bfloat16 where they are quantised, which is far
    coarser than bfloat16's rounding."""
    elements: Counter[str] = Counter()
    for tensor in GGUFReader(file).tensors:
        elements[tensor.tensor_type.name] += int(tensor.n_elements)
    most = elements.most_common(1)[0][0]
    return {"F32": torch.float32, "F16": torch.float16}.get(most, torch.bfloat16)


def _digest(file: Path) -> str:
    """Of the size, the head and samples of the rest: equal for copies, and quick for files of any size."""
    size = file.stat().st_size
    digest = hashlib.sha256(_FORM + size.to_bytes(8, "big"))
    starts = [size * piece // _PIECES for piece in range(_PIECES)] + [size - _PIECE_BYTES]
    with file.open("rb") as data:
        digest.update(data.read(_HEAD_BYTES))
        for start in starts:
            data.seek(max(start, _HEAD_BYTES))
            digest.update(data.read(_PIECE_BYTES))
    return digest.hexdigest()[:16]
