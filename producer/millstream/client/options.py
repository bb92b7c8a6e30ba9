"""What a client may be told beyond the server's address and the queue's name."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.errors import InvalidRequest
from millstream.wire.codec import MAX_MESSAGE_BYTES
from millstream.wire.queue_info import PubSub

MAX_RESULT_TTL_S = 10 * 365 * 86_400.0
ABOVE_ZERO = (
    "max_entries",
    "max_bytes",
    "max_payload_bytes",
    "result_ttl_s",
    "timeout_s",
    "connections",
    "stream_buffer",
)


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Bounds, timeouts and the queue's shape. The defaults suit a service beside its server.

    `max_entries` and `max_bytes` bound what one shard of the queue may hold; a submit beyond them is refused
    with QueueFull. `shards` and `pubsub` declare the queue on its first use; None takes what is there.
    Raises InvalidRequest for a value that cannot work.
    """

    max_entries: int = 100_000
    max_bytes: int = 1024**3
    max_payload_bytes: int = 8 * 1024**2  # of one request as sent
    result_ttl_s: float = 86_400.0  # how long a job that ended without its worker (cancel, expiry) is kept
    timeout_s: float = 5.0  # for a command's answer
    reconnect_s: float = 60.0  # for how long streams and waits outlast a server that does not answer
    connections: int = 16  # for commands; one more serves all streams
    stream_buffer: int = 1024  # messages kept for a slow reader before it must read the log instead
    name: str = "millstream-client"  # of the connections, as CLIENT LIST shows them
    shards: int | None = None
    pubsub: PubSub | None = None

    def __post_init__(self) -> None:
        for field in ABOVE_ZERO:
            if not getattr(self, field) > 0:
                raise InvalidRequest(field, getattr(self, field), "must be above 0")
        if self.result_ttl_s > MAX_RESULT_TTL_S:
            raise InvalidRequest("result_ttl_s", self.result_ttl_s, "must be at most ten years")
        if not self.reconnect_s >= 0:
            raise InvalidRequest("reconnect_s", self.reconnect_s, "must not be negative")
        if self.max_payload_bytes > MAX_MESSAGE_BYTES:
            limit = f"workers take no message above {MAX_MESSAGE_BYTES} bytes"
            raise InvalidRequest("max_payload_bytes", self.max_payload_bytes, limit)
        if self.shards is not None and self.shards < 1:
            raise InvalidRequest("shards", self.shards, "must be at least 1")
        if not self.name.isascii() or not self.name.isprintable() or " " in self.name or not self.name:
            raise InvalidRequest(
                "name", self.name, "printable ASCII without spaces, as CLIENT SETNAME takes it"
            )

    @property
    def result_ttl_ms(self) -> int:
        return max(1, round(self.result_ttl_s * 1000))
