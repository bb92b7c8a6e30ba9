"""The gateway's settings. The command line reads them; everything else receives values."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from millstream.errors import InvalidRequest
from millstream.wire.keys import QueueKeys

ABOVE_ZERO = (
    "timeout_s",
    "max_body_bytes",
    "max_requests",
    "max_file_bytes",
    "max_batch_lines",
    "batch_lease_s",
)


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Raises InvalidRequest for a value that cannot work.

    `timeout_s`: longest wait for an answer that is not streamed. `disconnect_grace_s`: how long a job
    outlives its client, for a repeated request to join. `grace_s`: how long requests may go on after
    SIGTERM.
    """

    redis_url: str
    queues: tuple[str, ...] = ("default",)
    host: str = "127.0.0.1"
    port: int = 8000  # 0: any that is free
    timeout_s: float = 600.0
    disconnect_grace_s: float = 5.0
    grace_s: float = 30.0
    max_body_bytes: int = 16 * 1024**2
    max_requests: int = 10_000  # under way at once
    files_url: str = "millstream-files"  # a folder, or s3://…, gs://…, az://…
    max_file_bytes: int = 2 * 1024**3
    max_batch_lines: int = 1_000_000
    batch_lease_s: float = 30.0  # for which a batch waits for a gateway that has died

    def __post_init__(self) -> None:
        for queue in self.queues:
            QueueKeys(queue)
        if not self.queues:
            raise InvalidRequest("--queue", self.queues, "name at least one queue")
        if not 0 <= self.port <= 65_535:
            raise InvalidRequest("--port", self.port, "must be 0 to 65535")
        for name in ABOVE_ZERO:
            if not getattr(self, name) > 0:
                raise InvalidRequest(_option(name), getattr(self, name), "must be above 0")
        for name in ("disconnect_grace_s", "grace_s"):
            if not getattr(self, name) >= 0:
                raise InvalidRequest(_option(name), getattr(self, name), "must not be negative")

    @property
    def on_loopback(self) -> bool:
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


DEFAULTS = GatewaySettings(redis_url="")
