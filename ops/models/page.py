"""Writes ops/pages/models.md: the model types that run, and what runs of the models that the field serves.

    python -m ops.models.page

Each answer is the engine's own check of a configuration of the model's type; field.tsv says what there is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

from millstream_worker.engine.runner.model_config.model_types import FOREIGN, HALVES, PROVEN, table
from millstream_worker.engine.runner.model_config.support import LISTED, UnsupportedModel, check, unknown_type

FIELD = Path(__file__).with_name("field.tsv")
PAGE = Path(__file__).parents[1] / "pages" / "models.md"
PUBLISHED, HALF, REFUSED = "as published", "its text half", "refused"
_METHODS = {"fp8": "fp8", "int4-awq": "awq", "int4-gptq": "gptq", "mxfp4": "mxfp4", "nvfp4": "modelopt"}

_TEXT = """# Models

Made by `python -m ops.models.page` from the engine's own table, which `millstream-worker --models` prints.

A type runs when the tests have compared it with transformers' own `generate` in float32, token by token: in
batches with shared prefixes, in pieces, after preemption. Of a multimodal checkpoint the **text half** runs:
the part that continues text, as a plain text model, whose logits the tests have compared with those of the
whole. The weights of its other parts are not loaded, and the log says how many; a request with an image is
refused.

Other types are refused at start, before a weight is read, with the reason and, where there is one, a type
that runs. So is a model whose weights are more than the free memory.

## As published

{published}

## Their text halves

{halves}

## Left out

| why | types |
|---|---|
{left_out}

## What the field serves

The {total} models of a recipe collection (`ops/models/field.tsv` names its source) that read text or
images, and of which one form fits a card of 80 GB, and what this worker's check says of each: **{runs} run**,
{counts}.

| model | type | runs | if not, why |
|---|---|---|---|
{field}
"""


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


def page() -> str:
    """Returns the page's text."""
    found = models()
    counts = Counter(model.runs for model in found)
    reasons: dict[str, list[str]] = {}
    for model_type, how, why in table():
        if how == "left out":
            reasons.setdefault(why, []).append(model_type)
    return _TEXT.format(
        published=", ".join(f"`{name}`" for name in sorted(PROVEN)),
        halves=", ".join(f"`{name}`" for name in sorted(HALVES)),
        left_out="\n".join(
            f"| {why} | {', '.join(f'`{name}`' for name in names)} |" for why, names in reasons.items()
        ),
        total=len(found),
        runs=len(found) - counts[REFUSED],
        counts=f"{counts[PUBLISHED]} as published and {counts[HALF]} as text halves",
        field="\n".join(
            f"| {model.name} | `{model.model_type}` | {model.runs} | {model.reason} |" for model in found
        ),
    )


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
    PAGE.write_text(page(), "utf-8")
