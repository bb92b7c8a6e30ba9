"""This worker as the server knows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from millstream.logs.failure_log import FailureLog, server_failures


@dataclass(frozen=True, slots=True, eq=False)
class Consumer:
    """One of the worker's connections, and the worker's name: as consumer of the lanes' groups, and as owner
    of what it has claimed. `outage` logs outages of the server once for all components that share it.
    """

    redis: Any
    name: str
    outage: FailureLog = field(default_factory=server_failures)
