"""The front's side of the engine process."""

from millstream_worker.engine_link.link import EngineLink, Exit
from millstream_worker.engine_link.port import EnginePort

__all__ = ["EngineLink", "EnginePort", "Exit"]
