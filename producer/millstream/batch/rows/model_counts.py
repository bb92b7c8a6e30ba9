"""Counts the models that the lines of a run name, for a message before the run begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

MAX_NAME = 200  # characters: more than a queue's name may have


class Models:
    """Mutable; counts lines by their body.model. "" stands for none."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, fields: Mapping[str, Any]) -> None:
        """Count one line that is to be run. An invalid name becomes an error row and is not counted."""
        body = fields.get("body")
        model = body.get("model") if isinstance(body, dict) else None
        if model is None or isinstance(model, str):
            self.counts[(model or "")[:MAX_NAME]] += 1
