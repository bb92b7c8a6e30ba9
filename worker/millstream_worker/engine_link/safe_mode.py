"""Chooses the configuration of the next engine after a device fault, or after deaths in a row without a step:
one with less that can fail. Each step down is for the life of the worker. It knows no processes and no jobs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.frames import Tried

_SAFE = {
    "cuda_graphs": "off",
    "compile_model": "off",
    "attention": "torch",
}


class SafeMode:
    """`config`: of the next engine. `reasons`: for each step down. `device`: the last engine's, if known."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.device = config.device
        self.reasons: list[str] = []

    def step_down(self, reason: str, tried: Tried | None = None) -> bool:
        """Without what the engine had `tried` last when it died at its start; None: it died later. Returns
        False if no safer configuration is left."""
        before = self.config
        for suspect in tried.suspects if tried else ():
            if self.config == before:
                self.config = _without(before, suspect.setting)
        if self.config == before and self.device != "cpu":
            self.config = _without(before, "cuda_graphs")
        if self.config == before:
            self.config = _without(before, "compile_model", "attention")
        changed = [name for name in _SAFE if getattr(self.config, name) != getattr(before, name)]
        if changed:
            self.reasons.append(_line(changed, reason))
        return bool(changed)


def _line(settings: list[str], reason: str) -> str:
    values = ", ".join(f"{name} {_SAFE[name]}" for name in settings)
    return f"{values.replace('_', ' ')} since {reason}"


def _without(config: EngineConfig, *settings: str) -> EngineConfig:
    """A value that the operator has set stays."""
    safe: dict[str, Any] = {name: _SAFE[name] for name in settings if getattr(config, name) == "auto"}
    return replace(config, **safe)
