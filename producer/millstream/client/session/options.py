"""A client's settings beyond the server's address and the queue's name."""

from __future__ import annotations

from dataclasses import dataclass, fields

from millstream.errors import InvalidRequest
from millstream.wire.messages.codec import MAX_MESSAGE_BYTES
from millstream.wire.state.durability import Durability, Wait
from millstream.wire.state.queue_info import MOST_SHARDS, PubSub

MAX_S = 10 * 365 * 86_400.0  # of any time; infinity is none
ABOVE_ZERO = (
    "max_entries",
    "max_bytes",
    "max_payload_bytes",
    "result_ttl_s",
    "timeout_s",
    "connections",
    "stream_buffer",
)
SECONDS = ("result_ttl_s", "timeout_s", "reconnect_s", "durability_timeout_s")
# By a field's annotation: the types that are taken, and their name.
_KINDS = {
    "int": ((int,), "a whole number"),
    "int | None": ((int, type(None)), "a whole number"),
    "float": ((int, float), "a number of seconds"),
}
MAX_DURABILITY_TIMEOUT_S = 3600.0
MAX_PAYLOAD_BYTES = MAX_MESSAGE_BYTES


def check_wait(field: str, seconds: float | None) -> None:
    """Check the seconds that a caller wants to wait; None or infinity: for ever. Raises InvalidRequest."""
    if seconds is None:
        return
    if type(seconds) not in (int, float) or not seconds >= 0:  # also nan, which no clock ever reaches
        raise InvalidRequest(field, seconds, "must be a number of seconds, 0 or more")


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Bounds, timeouts and the queue's shape. The defaults suit a service beside its server.

    `max_entries` and `max_bytes` bound one shard of the queue; a submit beyond them is refused with
    QueueFull. `shards` and `pubsub` declare the queue on its first use; None uses the existing values.
    `durability` is the default of `submit`; `durability_replicas`: its number of replicas (None: one for
    "replicas", none for "aof"). Raises InvalidRequest for a value that cannot work.
    """

    max_entries: int = 100_000
    max_bytes: int = 1024**3
    max_payload_bytes: int = MAX_PAYLOAD_BYTES  # of one request as sent
    result_ttl_s: float = 86_400.0  # for jobs that end without their worker (cancel, expiry)
    timeout_s: float = 5.0  # of one command
    reconnect_s: float = 60.0  # how long streams and waits outlast a server that does not answer
    connections: int = 16  # for commands; one more serves all streams
    stream_buffer: int = 1024  # messages buffered for a slow reader before it must read the log instead
    name: str = "millstream-client"  # of the connections, as CLIENT LIST shows them
    shards: int | None = None
    pubsub: PubSub | None = None
    durability: Durability | str = Durability.NONE
    durability_replicas: int | None = None
    durability_timeout_s: float = 5.0  # longest wait of a submit for its durability

    def __post_init__(self) -> None:
        self._check_kinds()
        for field in ABOVE_ZERO:
            if not getattr(self, field) > 0:
                raise InvalidRequest(field, getattr(self, field), "must be above 0")
        for field in SECONDS:
            if not getattr(self, field) <= MAX_S:
                raise InvalidRequest(field, getattr(self, field), "must be at most ten years, in seconds")
        if not self.reconnect_s >= 0:
            raise InvalidRequest("reconnect_s", self.reconnect_s, "must not be negative")
        if self.max_payload_bytes > MAX_MESSAGE_BYTES:
            limit = f"workers take no message above {MAX_MESSAGE_BYTES} bytes"
            raise InvalidRequest("max_payload_bytes", self.max_payload_bytes, limit)
        if self.shards is not None and not 1 <= self.shards <= MOST_SHARDS:
            raise InvalidRequest("shards", self.shards, f"must be 1 to {MOST_SHARDS}")
        if not 0.001 <= self.durability_timeout_s <= MAX_DURABILITY_TIMEOUT_S:
            limit = "must be at least a millisecond and at most an hour"
            raise InvalidRequest("durability_timeout_s", self.durability_timeout_s, limit)
        self.wait(self.durability)
        if not self.name.isascii() or not self.name.isprintable() or " " in self.name or not self.name:
            raise InvalidRequest(
                "name", self.name, "printable ASCII without spaces, as CLIENT SETNAME takes it"
            )

    def _check_kinds(self) -> None:
        for field in fields(self):
            taken, kind = _KINDS.get(str(field.type), ((), ""))
            if taken and type(value := getattr(self, field.name)) not in taken:
                raise InvalidRequest(field.name, value, f"must be {kind}")
        if not isinstance(self.name, str):
            raise InvalidRequest("name", self.name, "must be a string")

    def wait(self, durability: Durability | str | None) -> Wait:
        """The wait after a submit with this `durability`; None: the default. Raises InvalidRequest."""
        try:
            wanted = Durability(self.durability if durability is None else durability)
        except ValueError:
            known = f"must be one of {', '.join(Durability)}"
            raise InvalidRequest("durability", durability or self.durability, known) from None
        least = 1 if wanted is Durability.REPLICAS else 0
        replicas = least if self.durability_replicas is None else self.durability_replicas
        if replicas < least:
            raise InvalidRequest("durability_replicas", replicas, f"must be at least {least} for {wanted}")
        return Wait(wanted, replicas, round(self.durability_timeout_s * 1000))

    @property
    def result_ttl_ms(self) -> int:
        return max(1, round(self.result_ttl_s * 1000))
