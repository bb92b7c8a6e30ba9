"""Reads a checkpoint's configuration and end tokens. What does not fit is named."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, AutoConfig, GenerationConfig, PretrainedConfig

from millstream_worker.engine.runner.checkpoint.size_bounds import read_json
from millstream_worker.engine.runner.model_config.model_types import FOREIGN
from millstream_worker.engine.runner.model_config.support import UnsupportedModel, unknown_type

_BAD_CONFIG = (  # unknown model_type, code of its own; values that are missing, wrong or of another type
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, StrictDataclassError,
)  # fmt: skip


def end_ids(folder: str, config: PretrainedConfig) -> tuple[int, ...]:
    """End tokens of the generation configuration, then of the model's, without repetition. Raises
    `UnsupportedModel` for one that is no token of the model."""
    named: list[int | list[int] | None] = [config.get_text_config().eos_token_id]
    with contextlib.suppress(OSError):  # a model need not have one
        named.insert(0, GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id)
    lists = [ids if isinstance(ids, list) else [ids] for ids in named if ids is not None]
    found = tuple(dict.fromkeys(token for ids in lists for token in ids))
    size = config.get_text_config().vocab_size
    if beyond := [token for token in found if not 0 <= token < size]:
        raise UnsupportedModel(
            f"{folder}: eos_token_id {beyond[0]} is none of the model's {size} tokens (vocab_size), so that "
            "its answers would not end by it; correct config.json or generation_config.json"
        )
    return found


def load_config(folder: str) -> PretrainedConfig:
    """The folder's configuration; `UnsupportedModel` for one that transformers cannot make sense of."""
    given = read_json(Path(folder) / "config.json")
    kind = given.get("model_type")
    if kind not in CONFIG_MAPPING and kind not in FOREIGN:
        raise UnsupportedModel(unknown_type(kind, given))
    try:
        if kind in FOREIGN:
            return _foreign(given)
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except _BAD_CONFIG as error:
        raise UnsupportedModel(f"{folder}: config.json: {' '.join(str(error).split())}") from error


def _foreign(given: dict[str, Any]) -> PretrainedConfig:
    """Returns the configuration of a type that transformers does not know, with that of its text half."""
    inner = {name: value for name, value in given[FOREIGN[given["model_type"]]].items() if name != "auto_map"}
    config = PretrainedConfig(
        text_config=AutoConfig.for_model(**inner),
        architectures=given.get("architectures"),
        tie_word_embeddings=given.get("tie_word_embeddings", inner.get("tie_word_embeddings", False)),
        dtype=given.get("dtype", given.get("torch_dtype")),
    )
    config.model_type = given["model_type"]
    return config
