"""Where a model's files are: a local folder, a GGUF file, or a hub id, brought into one form before it loads.

Whatever is asked for ends as a folder of safetensors, config and tokenizer. Pickled weights are refused:
loading them runs code. Knows no device and builds no model. Needs no torch, so that a model that is not
there is reported before torch is imported; only reading a GGUF file does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open

from millstream_worker.engine.protocol.config import cache_folder
from millstream_worker.engine.protocol.frames import LoadStep
from millstream_worker.engine.runner.checkpoint.size_bounds import (
    check_config,
    check_depth,
    check_files,
    check_tokenizer,
    read_json,
)
from millstream_worker.engine.runner.checkpoint.source_weights import INDEX, weight_files

Report = Callable[[str], None]

_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt"]
_HUB_OTHERS = ["original/*", "onnx/*", "consolidated*"]  # the same weights in forms that nothing here reads


class CheckpointError(Exception):
    """The model cannot be had. The message names what was asked for, what is wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's files, all of them local. `source`: the folder, or the GGUF file that it was made from."""

    folder: Path  # config.json and *.safetensors
    name: str  # for results and metrics
    tokenizer_folder: Path
    source: Path


def resolve(model: str, cache_dir: str, report: Report) -> Checkpoint:
    """Find `model`: a folder, a .gguf file, a hub id, or a .gguf file on the hub (owner/name/file.gguf).

    What has to be fetched or converted is told to `report`. Converted GGUF files are kept under `cache_dir`
    ("": ~/.cache/millstream). Raises CheckpointError.
    """
    path = Path(model).expanduser()
    cache = cache_folder(cache_dir) / "gguf"
    if not model:
        raise CheckpointError("no model: name a local folder, a .gguf file, or a hub id")
    if path.is_dir():
        return _from_folder(path, model)
    if path.is_file():
        return _from_file(path, cache, report)
    if path.is_absolute() or model.startswith((".", "~")):
        raise CheckpointError(f"model {model!r}: no such file or folder")
    return _from_hub(model, cache, report)


def _from_folder(folder: Path, model: str) -> Checkpoint:
    if not (folder / "config.json").is_file():
        gguf = sorted(folder.glob("*.gguf"))
        remedy = f"to run a GGUF file, name the file: {gguf[0]}" if gguf else "is it the right folder?"
        raise CheckpointError(f"model {model!r}: the folder has no config.json; {remedy}")
    with _named(model):
        check_files(folder)
        config = _config(folder)
        _check_weights(folder, model)
        check_config(config, sum(file.stat().st_size for file in weight_files(folder)))
        check_tokenizer(folder)
    return Checkpoint(folder, folder.resolve().name, folder, folder)


def _from_file(path: Path, cache: Path, report: Report) -> Checkpoint:
    if path.suffix != ".gguf":
        raise CheckpointError(
            f"model {str(path)!r}: a single file must be a .gguf; of a safetensors model, name the folder"
        )
    from millstream_worker.engine.runner.checkpoint.gguf_cache import GGUFCache  # and with it torch
    from millstream_worker.engine.runner.checkpoint.gguf_weights import GGUFError

    try:
        folder = GGUFCache(cache).folder_of(path, report)
    except GGUFError as error:
        raise CheckpointError(f"model {str(path)!r}: {error}") from error
    return replace(_from_folder(folder, str(folder)), name=path.stem, source=path)


def _from_hub(model: str, cache: Path, report: Report) -> Checkpoint:
    repository, _, file = model.rpartition("/")
    report(f"{LoadStep.FETCH} {model}, unless it is in the hub's cache")
    try:
        if file.endswith(".gguf") and "/" in repository:
            return _from_file(Path(hf_hub_download(repository, file)), cache, report)
        folder = Path(snapshot_download(model, allow_patterns=_HUB_FILES, ignore_patterns=_HUB_OTHERS))
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"model {model!r}: there is no such file or folder, nor such a model in the hub's cache, and no "
            "network to fetch it: give a folder or a GGUF file"
        ) from error
    except (HfHubHTTPError, OSError, ValueError) as error:  # all that the hub's client says no with
        reason = str(error).strip().partition("\n")[0]
        raise CheckpointError(
            f"model {model!r}: there is no such file or folder, and as a hub id it cannot be had: {reason}"
        ) from error
    return replace(_from_folder(folder, model), name=model)


@contextlib.contextmanager
def _named(model: str) -> Iterator[None]:
    """Raises CheckpointError with the model's name for what a file is refused or cannot be read."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise CheckpointError(f"model {model!r}: {error}") from error


def _config(folder: Path) -> dict[str, Any]:
    config = read_json(folder / "config.json")
    if not isinstance(config, dict) or "model_type" not in config:
        raise ValueError("config.json has no model_type: no transformers model")
    check_depth("config.json", config)
    if (generation := folder / "generation_config.json").is_file():
        check_depth(generation.name, read_json(generation))
    return config


def _check_weights(folder: Path, model: str) -> None:
    """Refuse pickled, missing and torn files before minutes are spent on loading the others."""
    files = weight_files(folder)
    pickled = sorted(file.name for pattern in _PICKLED for file in folder.glob(pattern))
    if pickled and not files:
        raise CheckpointError(
            f"model {model!r}: {pickled[0]} is a pickle, and loading one may run any code; "
            "use the model's safetensors, or have its author convert it with save_pretrained"
        )
    if not files:
        raise CheckpointError(f"model {model!r}: the folder has no *.safetensors")
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(
            f"model {model!r}: {INDEX} names {min(missing)}, which is missing: fetch it anew"
        )
    for file in files:
        try:
            with safe_open(file, framework="np"):
                pass
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"model {model!r}: {file.name} is no whole safetensors file ({error}): fetch it anew"
            ) from error
