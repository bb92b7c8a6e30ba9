"""The front's side of the engine process."""

from millstream_worker.engine_link.link import LOOK_S, EngineLink, Exit, Silence
from millstream_worker.engine_link.port import EnginePort

__all__ = ["LOOK_S", "EngineLink", "EnginePort", "Exit", "Silence"]
