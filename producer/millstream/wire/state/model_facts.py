"""The facts about a served model that its worker tells, carried whole from there to whoever reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millstream.wire.messages.job_messages import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Empty and 0: an older worker does not say, or no engine is ready."""

    model: str = ""
    device: str = ""
    weights: str = ""  # their format, as "bfloat16", "int8" or "Q4_K+Q6_K"
    kv_format: str = ""  # of keys and values, as "bfloat16" or "int8"
    model_digest: str = ""  # of its checkpoint
    context_length: int = 0  # most tokens of a request, with its output
    max_rows: int = 0  # in a batch
    self_check: str = ""  # what was checked on the device when its engine started, and how far it was off
    fallbacks: str = ""  # what is slower than it could be, with the reasons

    def facts(self) -> dict[str, Any]:
        """By name, for a record that has more."""
        return {name: getattr(self, name) for name in ModelFacts.__slots__}

    def of_result(self) -> dict[str, str]:
        """Those that a Result has."""
        return {name: value for name, value in self.facts().items() if name in Result.model_fields}
