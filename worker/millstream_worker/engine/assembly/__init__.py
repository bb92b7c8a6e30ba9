"""Puts an engine together from its configuration: device, model, memory, runner, scheduler."""

from millstream_worker.engine.assembly.build_engine import build

__all__ = ["build"]
