"""Decides from a model's configuration, before any weight is read, if the engine runs it. What is not known
to be computed correctly is refused with the reason: a model that runs and computes something slightly
different is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import transformers
from transformers import PretrainedConfig

from millstream_worker.engine.runner.model_config.model_types import (
    HALVES,
    HEADED,
    PROVEN,
    REASONS,
    RECURRENT,
    instead_of,
)
from millstream_worker.engine.runner.model_config.quantization import reason_against, settings_of
from millstream_worker.engine.runner.model_config.text_half import text_half

LISTED = "all that run: millstream-worker --models"
_CONTINUES_NONE = (
    "reads its input and continues no text: it makes embeddings or labels, which this worker does not do; "
    + LISTED
)
_NO_HALF = f"has no text half that transformers could build by itself; {LISTED}"
_WRITERS = ("CausalLM", "ConditionalGeneration", "LMHead", "ForVision2Seq", "ImageTextToText")

_MOST_CONTEXT = 2**27  # tokens: ten times that of any model that is around

_PROVEN_ROPE = frozenset(("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional"))

# Beyond the original length, its frequencies depend on the longest row of a call: a row's neighbours would
# change its keys. Up to that length they are the same for all.
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


class UnsupportedModel(Exception):
    """The model cannot be run; the message names its architecture and the reason."""


def check(config: PretrainedConfig) -> PretrainedConfig:
    """Returns the configuration of the model that runs: `config`, or its text half's. Raises
    `UnsupportedModel` unless models of this configuration are known to be computed correctly."""
    text = text_half(config)
    reason = _reason_against(config, text)
    if reason is not None or text is None:
        raise UnsupportedModel(f"{architecture(config)} ({config.model_type}) {reason or _NO_HALF}")
    return text


def check_device(text: PretrainedConfig, device: str) -> None:
    """`device`: cpu | cuda. Raises `UnsupportedModel` where what `check` returned does not run there."""
    if device != "cpu" and text.model_type in RECURRENT:
        raise UnsupportedModel(
            f"{architecture(text)} ({text.model_type}) keeps a recurrent state beside keys and values, and "
            "the kernels of that are written for the CPU alone so far; run it with device 'cpu'"
        )


def unknown_type(model_type: object, config: Mapping[str, Any]) -> str:
    """Returns the reason against a config.json of a type that transformers does not know."""
    if "auto_map" in config:
        return (
            f"{model_type} is computed by code that comes with the checkpoint, and only code of transformers "
            f"is run; {LISTED}"
        )
    return (
        f"{model_type} is newer than transformers {transformers.__version__} here, or no transformers model: "
        f"pip install -U transformers, or choose a known type; {LISTED}"
    )


def architecture(config: PretrainedConfig) -> str:
    """The name of the model's class, where its configuration has it, or of its configuration's."""
    named: list[str] | None = getattr(config, "architectures", None)
    return named[0] if named else type(config).__name__


def context_length(config: PretrainedConfig) -> int:
    """Most tokens a row can have with every position computed as the model means it."""
    length: int | None = getattr(config, "max_position_embeddings", None)
    if not length:
        raise UnsupportedModel(
            f"{architecture(config)}: max_position_embeddings is missing in its config.json"
        )
    if not 0 < length <= _MOST_CONTEXT:
        raise UnsupportedModel(
            f"{architecture(config)}: max_position_embeddings is {length} in its config.json, and can be 1 "
            f"to {_MOST_CONTEXT}; correct it, or fetch the file anew"
        )
    for rope in _ropes(config):
        if rope.get("rope_type") in _LENGTH_DEPENDENT_ROPE:
            length = min(length, rope.get("original_max_position_embeddings") or length)
    return length


def context_note(config: PretrainedConfig) -> str | None:
    """Why the context is shorter than the configuration says; None where it is not."""
    length, named = context_length(config), config.max_position_embeddings
    if length == named:
        return None
    return (
        f"context limited to {length} of {named} tokens: beyond, this model's RoPE depends on the longest row"
    )


def _reason_against(config: PretrainedConfig, text: PretrainedConfig | None) -> str | None:
    """Returns what follows the name of a model; None where it runs. `text`: the half that continues text."""
    if getattr(config, "is_encoder_decoder", False):
        return f"is an encoder-decoder model; models that only continue a text run: {LISTED}"
    kinds = [config.model_type, *([] if text is None else [text.model_type])]
    for kind in kinds:
        if kind in REASONS:
            near = instead_of(kind)
            return f"{REASONS[kind]}; " + (f"of its kind runs {near}, {LISTED}" if near else LISTED)
    if not (config.model_type in PROVEN | HALVES or _writes(config)):
        return _CONTINUES_NONE
    if text is None:
        return _NO_HALF
    if text is config and text.model_type not in PROVEN:
        return f"is not among the tested types; {LISTED}"
    if text is not config and not (config.model_type in HALVES and text.model_type in PROVEN | HEADED):
        return f"is not among the types whose text half ({text.model_type}) is tested; {LISTED}"
    strange = {rope.get("rope_type") or "default" for rope in _ropes(text)} - _PROVEN_ROPE
    if strange:
        tested = ", ".join(sorted(_PROVEN_ROPE))
        return f"has RoPE of type {min(strange)!r}, which is not among the tested ones ({tested})"
    for rope in _ropes(text):
        theta = rope.get("rope_theta")
        if theta is not None and not 0 < theta < inf:
            return (
                f"has the rope_theta {theta!r}, which can only be a positive number; correct its config.json"
            )
    return reason_against(settings_of(text))


def _writes(config: PretrainedConfig) -> bool:
    """True if the checkpoint is of a class that continues text."""
    named = getattr(config, "architectures", None)
    return not named or any(word in named[0] for word in _WRITERS)


def _ropes(config: PretrainedConfig) -> list[dict[str, Any]]:
    """The RoPE settings: one, or one per kind of layer; an empty one for other positions."""
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return nested or [parameters]
