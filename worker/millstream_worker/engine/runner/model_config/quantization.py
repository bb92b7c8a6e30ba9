"""Reads what a configuration says of quantised weights. Their tensors say which format they have; refused
here is what tensors do not tell. Needs no library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

READ_METHODS = (
    "auto-round", "awq", "bitsandbytes", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "modelopt",
    "mxfp4", "mxfp8",
)  # fmt: skip
WAY_OUT = "use the model in bfloat16, or a GGUF file"
_PLAIN = (None, "", "dense")


def settings_of(config: object) -> dict[str, Any]:
    """Returns a configuration's quantization_config; empty where there is none."""
    found: Any = getattr(config, "quantization_config", None)
    if found is None:
        return {}
    return found if isinstance(found, dict) else dict(found.to_dict())


def without_quantization(*configs: object) -> dict[str, Any]:
    """Returns the quantization_config of the first, and deletes it from all: no quantiser of transformers
    takes part in loading."""
    settings = settings_of(configs[0])
    for config in configs:
        if hasattr(config, "quantization_config"):
            delattr(config, "quantization_config")
    return settings


def reason_against(settings: Mapping[str, Any]) -> str | None:
    """Returns what follows the name of a model whose weights cannot be read; None for all others."""
    method = settings.get("quant_method")
    if method not in (None, *READ_METHODS):
        return (
            f"has quantised weights ({method}), which are not read; read are {', '.join(READ_METHODS)}: "
            f"{WAY_OUT}"
        )
    found = _unread(method, settings)
    return None if found is None else f"has quantised weights ({method}) {found}: {WAY_OUT}"


def _unread(method: object, settings: Mapping[str, Any]) -> str | None:
    """Returns the field that is not read, and what is."""
    form, version = settings.get("checkpoint_format"), str(settings.get("version", "gemm")).lower()
    packing = str(settings.get("packing_format", "auto_round:auto_gptq"))
    sparsity = settings.get("sparsity_config") or {}
    if method == "awq" and version != "gemm":
        return f"of version {version}; gemm is read"
    if method == "gptq" and form not in (None, "", "gptq", "gptq_v2"):
        return f"in checkpoint_format {form}; gptq and gptq_v2 are read"
    if method == "auto-round" and not packing.endswith(("auto_gptq", "auto_awq")):
        return f"in packing_format {packing}; auto_gptq and auto_awq are read"
    if method == "bitsandbytes" and settings.get("load_in_8bit"):
        return "with load_in_8bit; nf4 and fp4 are read"
    if settings.get("transform_config"):
        return "with transforms of the inputs (transform_config), which are not computed"
    if isinstance(sparsity, Mapping) and sparsity.get("format") not in _PLAIN:
        return f"with sparsity_config.format {sparsity['format']}; dense is read"
    return None
