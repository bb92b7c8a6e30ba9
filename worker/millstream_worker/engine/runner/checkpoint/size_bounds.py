"""Bounds of a checkpoint's files, looked at before anything is made of them: a few bytes of JSON can ask for
any amount of memory. Each function raises ValueError with the file, the field, its value and what to do.
Needs no torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

_MIB = 2**20
_MOST_BYTES = {  # the largest that are around have: 0.1, 0.1, and 35 MB
    **dict.fromkeys(("config.json", "generation_config.json"), 4 * _MIB),
    **dict.fromkeys(("chat_template.jinja", "chat_template.json"), _MIB),
}
_MOST_BYTES_OF_OTHERS = 128 * _MIB  # tokenizers and indices
_READ = ("*.json", "*.jinja", "*.model", "*.txt", "additional_chat_templates/*.jinja")
_MOST_DEPTH = 64
_WEIGHTS_A_BYTE = 8  # one bit each
_FREE_WEIGHTS = 2**24  # that sizes which a small model does not use may make
# Sizes by their names in configurations and in the metadata of GGUF.
_WIDTH = re.compile(
    r"(_(size|dim|rank|heads?|layers?|experts|inner|ff|count)|n_embd|d_model|"
    r"(embedding|feed_forward|key|value)_length)$"
)
_HIDDEN = ("hidden_size", "n_embd", "d_model", "embedding_length")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "block_count")
_ROWS = ("vocab_size", "num_labels", "n_positions", "vocab_size_per_layer_input")  # of one matrix of a model
_POSITIVE = (*_HIDDEN, *_LAYERS, "vocab_size", "num_attention_heads", "n_head", "attention.head_count")
_FREE_IDS = 2**16  # that a tokenizer may leave out
_MOST_GROWTH = 4096  # times: a text is normalised in slices of 64 KiB


def check_files(folder: Path) -> None:
    """Checks the sizes of all files but the weights."""
    for file in sorted(file for pattern in _READ for file in folder.glob(pattern)):
        size, most = file.stat().st_size, _MOST_BYTES.get(file.name, _MOST_BYTES_OF_OTHERS)
        if size > most:
            raise ValueError(
                f"{file.name} has {size} bytes, and may have {most}; fetch it anew, or take out what is no "
                "part of the model"
            )


def read_json(file: Path) -> Any:
    """Returns what is in it. Raises OSError, too."""
    try:
        return json.loads(file.read_bytes())
    except RecursionError as error:
        raise ValueError(f"{file.name} is nested too deep; fetch it anew") from error
    except ValueError as error:
        raise ValueError(f"{file.name} cannot be read: {error}") from error


def check_depth(name: str, value: object) -> None:
    """Checks how deep the value of a file of this name is nested."""
    level: list[Any] = [value] if _holds(value) else []
    depth = 0
    while level:
        depth += 1
        if depth > _MOST_DEPTH:
            raise ValueError(f"{name} is nested more than {_MOST_DEPTH} deep; fetch it anew")
        inner = [one.values() if isinstance(one, dict) else one for one in level]
        level = [one for values in inner for one in values if _holds(one)]


def check_config(config: Mapping[str, Any], weight_bytes: int, name: str = "config.json") -> None:
    """Checks that the weights that a configuration asks for can be in files of so many bytes. Sizes that a
    model of its kind does not use count, too: they are small beside the others.
    """
    for part in _parts(config):
        sizes = {field: value for field, value in part.items() if type(value) is int and value}
        for field in _POSITIVE:
            if type(value := part.get(field)) is int and value < 1:
                raise ValueError(
                    f"{name}: {field} is {value}, and no model has fewer than 1; correct it, or fetch it anew"
                )
        hidden, layers = (
            next((field for field in names if field in sizes), None) for names in (_HIDDEN, _LAYERS)
        )
        for field in sizes:
            if field in _ROWS:
                _check_product(name, sizes, [hidden, field], weight_bytes)
            elif _WIDTH.search(field) and field not in _LAYERS:
                _check_product(name, sizes, [layers, hidden, field], weight_bytes)
        _check_product(name, sizes, [layers, hidden], weight_bytes)


def check_tokenizer(folder: Path) -> None:
    """Checks the ids of a tokenizer, and how long its normaliser can make a text. What is wrong with its form
    is for its reader to say.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        file = folder / "vocab.json"
        if file.is_file() and isinstance(vocabulary := read_json(file), dict):
            _check_ids(file.name, vocabulary.items())
        return
    form = read_json(file)
    try:
        vocabulary = form["model"]["vocab"]
        added = [(token["content"], token["id"]) for token in form.get("added_tokens") or ()]
        growth = _growth(form["normalizer"]) if form.get("normalizer") else 1
    except (LookupError, TypeError, AttributeError):
        return
    if growth > _MOST_GROWTH:
        raise ValueError(
            f"{file.name}: its normalizer can make a text {growth:.3g} times as long, and may make it "
            f"{_MOST_GROWTH} times; fetch it anew"
        )
    ids = vocabulary.items() if isinstance(vocabulary, dict) else zip(vocabulary, range(len(vocabulary)))  # noqa: B905
    _check_ids(file.name, [*((str(token), index) for token, index in ids), *added])


def _holds(value: object) -> bool:
    return isinstance(value, (dict, list)) and bool(value)


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields a configuration and those inside it."""
    yield config
    for value in config.values():
        if isinstance(value, dict):
            yield from _parts(value)


def _check_product(
    name: str, sizes: Mapping[str, int], fields: Iterable[str | None], weight_bytes: int
) -> None:
    """Checks one number of weights. `fields`: those whose values make it; None for one that is missing."""
    named = [field for field in fields if field is not None]
    weights, most = prod(sizes[field] for field in named), _WEIGHTS_A_BYTE * weight_bytes + _FREE_WEIGHTS
    if weights > most:
        values = ", ".join(f"{field} {sizes[field]}" for field in dict.fromkeys(named))
        raise ValueError(
            f"{name}: {values}: a model of this size has at least {weights:.3g} weights, and its files have "
            f"{weight_bytes} bytes; correct it, or fetch it and the weights anew"
        )


def _check_ids(name: str, ids: Iterable[tuple[str, Any]]) -> None:
    numbered = [(index, token) for token, index in ids if type(index) is int]
    most = 2 * len(numbered) + _FREE_IDS
    index, token = max(numbered, default=(0, ""))
    if index > most:
        raise ValueError(
            f"{name}: the token {token!r:.60} has the id {index}, far beyond its {len(numbered)} tokens (ids "
            f"up to {most} are taken); correct it, or fetch it anew"
        )


def _growth(normalizer: Mapping[str, Any]) -> float:
    """Returns how many times as long its replacements can make a text, at most."""
    if normalizer["type"] == "Sequence":
        return prod(map(_growth, normalizer["normalizers"]), start=1.0)
    if normalizer["type"] != "Replace":
        return 1.0
    pattern, content = normalizer["pattern"], normalizer["content"]
    if "String" in pattern:
        return max(1.0, len(content) / max(1, len(pattern["String"])))
    return 1.0 + len(content)  # where the pattern is empty, it stands between any two characters
