"""Prints the tables of ops/pages/models.md: the model types that run, and what runs of what the field serves.

    python -m ops.models.tables

Each answer is the engine's own check of a configuration of the model's type; field.tsv says what there is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

from millstream_worker.engine.runner.model_config.model_types import (
    FOREIGN,
    HALVES,
    IMAGE_UNITS,
    PROVEN,
    RECURRENT,
    table,
)
from millstream_worker.engine.runner.model_config.support import LISTED, UnsupportedModel, check, unknown_type

FIELD = Path(__file__).with_name("field.tsv")
PUBLISHED, HALF, REFUSED = "as published", "its text half", "refused"
_METHODS = {"fp8": "fp8", "int4-awq": "awq", "int4-gptq": "gptq", "mxfp4": "mxfp4", "nvfp4": "modelopt"}


@dataclass(frozen=True, slots=True)
class Model:
    """One row of field.tsv, and what the engine says of it."""

    name: str
    model_type: str
    text_type: str
    form: str  # the widest that fits
    runs: str
    reason: str


def models() -> list[Model]:
    """Returns all rows in the order of the names."""
    lines = [line for line in FIELD.read_text("utf-8").splitlines() if not line.startswith("#")]
    rows = [dict(zip(lines[0].split("\t"), line.split("\t"), strict=True)) for line in lines[1:]]
    return [_checked(row) for row in sorted(rows, key=lambda row: row["model"].lower())]


def tables() -> dict[str, str]:
    """Returns the tables by their names."""
    reasons: dict[str, list[str]] = {}
    for model_type, how, why in table():
        if how == "left out":
            reasons.setdefault(why, []).append(model_type)
    left_out = (f"| {why} | {_names(types)} |" for why, types in reasons.items())
    return {
        "published": _names(PROVEN),
        "halves": _names(HALVES),
        "images": _names(IMAGE_UNITS),
        "recurrent": _names(RECURRENT),
        "left_out": "\n".join(("| why | types |", "|---|---|", *left_out)),
        "field": _field(models()),
    }


def _field(found: Sequence[Model]) -> str:
    counts = Counter(model.runs for model in found)
    rows = (f"| {one.name} | `{one.model_type}` | {one.runs} | {one.reason} |" for one in found)
    total = (
        f"Of {len(found)} models {len(found) - counts[REFUSED]} run: {counts[PUBLISHED]} as published, "
        f"{counts[HALF]} as text halves."
    )
    return "\n".join((total, "", "| model | type | runs | if not, why |", "|---|---|---|---|", *rows))


def _names(types: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(types))


def _checked(row: dict[str, str]) -> Model:
    form = row["fits"].split(" ")[0]
    runs, reason = PUBLISHED, ""
    model_type = row["text_type"] if row["model_type"] == "?" else row["model_type"]
    try:
        config = _config(model_type, row["text_type"], form)
        runs = PUBLISHED if check(config) is config else HALF
    except UnsupportedModel as error:
        said = str(error).removesuffix(LISTED).rstrip(" ,;")
        runs, reason = REFUSED, said.split(f" ({model_type}) ")[-1]
    return Model(row["model"], row["model_type"], row["text_type"], form, runs, reason)


def _config(model_type: str, text_type: str, form: str) -> PretrainedConfig:
    """Returns a configuration of the types, quantised where no other form fits. Raises UnsupportedModel for a
    type that transformers does not know."""
    fields: dict[str, Any] = {}
    if (method := _METHODS.get(form)) is not None:
        fields["quantization_config"] = {"quant_method": method}
    if model_type in FOREIGN:
        config = PretrainedConfig(text_config=AutoConfig.for_model(text_type), **fields)
        config.model_type = model_type
        return config
    if model_type not in CONFIG_MAPPING:
        raise UnsupportedModel(unknown_type(model_type, {}))
    if text_type != model_type and hasattr(AutoConfig.for_model(model_type), "text_config"):
        fields["text_config"] = {"model_type": text_type}
    made: PretrainedConfig = AutoConfig.for_model(model_type, **fields)
    return made


if __name__ == "__main__":
    for name, text in tables().items():
        print(f"<!-- {name} -->\n{text}\n<!-- /{name} -->\n")
