"""The half of a multimodal checkpoint that continues text: its configuration as a plain text model's, and its
weights' names in that model. Found by what transformers announces and by names of weights; a table lists only
the types whose text half has no class of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig, PreTrainedModel

from millstream_worker.engine.runner.model_config.headed_body import headed_body
from millstream_worker.engine.runner.model_config.model_types import HEADED

_Changes = Callable[[Mapping[str, Any]], dict[str, Any]]


def _always(**fields: Any) -> _Changes:
    return lambda given: fields


def _one_bias(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"attention_bias": given["use_bias"], "mlp_bias": given["use_bias"]}


# The type that computes the same for text alone, and the fields that make it do so. Positions in three
# directions (M-RoPE) are equal ones for text.
_TWINS: dict[str, tuple[str, _Changes]] = {
    "glm4v_text": ("glm4", _always(attention_bias=True)),
    "glm_ocr_text": ("glm4", _always(attention_bias=False)),
    "granite_docling_text": ("granite", _always()),
    "hunyuan_vl_text": ("hunyuan_v1_dense", _always()),
    "paddleocr_vl_text": ("llama", _one_bias),
    "phi4_multimodal": ("phi3", _always()),
    "qwen2_5_vl_text": ("qwen2", _always()),
    "qwen2_vl_text": ("qwen2", _always()),
    "qwen3_vl_moe_text": ("qwen3_moe", _always(norm_topk_prob=True)),
    "qwen3_vl_text": ("qwen3", _always()),
}
_DIRECTIONS = ("mrope_section", "mrope_interleaved", "xdrope_section")
_NOT_THE_TWINS = ("model_type", "architectures", "transformers_version")
_OF_THE_WHOLE = ("dtype", "quantization_config", "eos_token_id")  # fields that count where the whole has them

_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|embed_in|word_embeddings)\.weight$")
_OTHER_EMBEDDING = re.compile(r"vision|visual|audio|per_layer")
_TOWER = re.compile(r"vision|visual|audio|image|multi_modal|embed_tokens_extend")
_HEAD = "lm_head.weight"


def text_half(whole: PretrainedConfig) -> PretrainedConfig | None:
    """Returns the configuration of the model that continues text: `whole`, or that of its half with the
    whole's dtype, quantisation and ends; None where transformers has no class for it."""
    try:
        text: PretrainedConfig = whole.get_text_config(decoder=True)
    except ValueError:  # it has several
        return None
    if text.model_type in _TWINS:
        text = _twin(text)
    elif not _continues_text(text) and text.model_type not in HEADED:
        return None
    if text is not whole:
        for field in _OF_THE_WHOLE:
            if (value := getattr(whole, field, None)) is not None:
                setattr(text, field, value)
    return text


def text_class(config: PretrainedConfig, whole: PretrainedConfig) -> type[PreTrainedModel]:
    """Returns the class of the model for what `text_half` returned of `whole`."""
    if config.model_type in HEADED:
        return headed_body(whole)
    found: type[PreTrainedModel] = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return found


def text_names(names: Iterable[str]) -> dict[str, str]:
    """Returns the text model's names of its weights by the names in a multimodal checkpoint, others left out:
    empty where none embeds tokens. What stands before the embedding of tokens stands before all of them, but
    for the head."""
    names = list(names)
    embeddings = [name for name in names if _EMBEDDING.search(name) and not _OTHER_EMBEDDING.search(name)]
    if not embeddings:
        return {}
    prefix = re.sub(r"[^.]+\.weight$", "", min(embeddings, key=len))
    inner = {name: name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    found = {name: f"model.{rest}" for name, rest in inner.items() if not _TOWER.match(rest)}
    return found | {name: _HEAD for name in names if name == _HEAD or name.endswith(f".{_HEAD}")}


def own_names(config: PretrainedConfig, whole: PretrainedConfig, stored: Iterable[str]) -> dict[str, str]:
    """Returns the model's names of its weights by those in the checkpoint. The head of a text half is tied
    as the checkpoint has it."""
    if whole is config:
        return {name: name for name in stored}
    names = text_names(stored)
    _tie_as_stored(config, whole, names.values())
    return names


def _tie_as_stored(text: PretrainedConfig, whole: PretrainedConfig, names: Iterable[str]) -> None:
    """Ties the head of a text half to its embedding where the checkpoint has no head, and otherwise where
    the whole says so: halves often do not say it."""
    told = getattr(whole, "tie_word_embeddings", text.tie_word_embeddings)
    text.tie_word_embeddings = _HEAD not in names or bool(told)


def _continues_text(config: PretrainedConfig) -> bool:
    known = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    return known and "ConditionalGeneration" not in MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__


def _twin(text: PretrainedConfig) -> PretrainedConfig:
    twin, changes = _TWINS[text.model_type]
    given = {field: value for field, value in text.to_dict().items() if field not in _NOT_THE_TWINS}
    rope = {field: value for field, value in given["rope_parameters"].items() if field not in _DIRECTIONS}
    if rope.get("rope_type") in ("mrope", None):
        rope["rope_type"] = "default"
    if twin == "glm4":  # which would turn half of a head where nothing is said
        rope.setdefault("partial_rotary_factor", 1.0)
    config: PretrainedConfig = CONFIG_MAPPING[twin](**given | {"rope_parameters": rope} | changes(given))
    return config
