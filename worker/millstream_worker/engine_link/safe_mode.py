"""Chooses the configuration of the next engine after a device fault, or after deaths in a row without a step:
one with less that can fail. Each step down is for the life of the worker. It knows no processes and no jobs.
"""

from __future__ import annotations

from dataclasses import replace

from millstream_worker.engine.protocol.config import EngineConfig

_SETTINGS = ("cuda_graphs", "compile_model", "attention")


class SafeMode:
    """`config`: of the next engine. `reasons`: one for each step down. `device`: the last engine's, once it
    is known."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.device = config.device
        self.reasons: list[str] = []

    def step_down(self, reason: str) -> bool:
        """Returns False if no safer configuration is left."""
        before = self.config
        if self.device != "cpu":
            self.config = _without_graphs(before)
        if self.config == before:
            self.config = _plain(before)
        changed = [name for name in _SETTINGS if getattr(self.config, name) != getattr(before, name)]
        if changed:
            values = ", ".join(f"{name} {getattr(self.config, name)}" for name in changed)
            self.reasons.append(f"{values.replace('_', ' ')} since {reason}")
        return bool(changed)


def _without_graphs(config: EngineConfig) -> EngineConfig:
    return replace(config, cuda_graphs=_safer(config.cuda_graphs, "off"))


def _plain(config: EngineConfig) -> EngineConfig:
    """Neither compiled code nor kernels of our own."""
    compile_model, attention = _safer(config.compile_model, "off"), _safer(config.attention, "torch")
    return replace(config, compile_model=compile_model, attention=attention)


def _safer(value: str, safe: str) -> str:
    """A value that the operator has set stays."""
    return safe if value == "auto" else value
