"""The gateway's settings. The command line reads them; everything else receives values."""

from __future__ import annotations

import ipaddress
import re
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from millstream.client.session.options import MAX_S
from millstream.errors import InvalidRequest
from millstream.logs.log_setup import LogFormat, LogLevel
from millstream.wire.keys import QueueKeys

SECONDS = ("timeout_s", "disconnect_grace_s", "grace_s", "batch_lease_s")
ABOVE_ZERO = (
    "timeout_s",
    "max_body_bytes",
    "max_requests",
    "max_file_bytes",
    "max_batch_lines",
    "batch_lease_s",
)
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?|\*", re.ASCII)


class GatewaySettings(BaseModel):
    """Raises InvalidRequest for a value that cannot work. The docstring of each field is the help of its
    option.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    redis_url: str
    """The server of the queues."""
    queues: tuple[str, ...] = ("default",)
    """A queue to serve, as a model of this name; repeat it for several."""
    host: str = "127.0.0.1"
    """The address to listen on; others than loopback need keys."""
    open: bool = False
    """Serve callers on this machine without keys, as long as the server has never had one."""
    allow_origins: tuple[str, ...] = ()
    """An origin of web pages that may call, as `https://app.example`, or `*`; repeat it for several."""
    port: int = 8000
    """The port; 0: any that is free."""
    timeout_s: float = 600.0
    """Longest wait for an answer that is not streamed."""
    disconnect_grace_s: float = 5.0
    """How long a job outlives its client, for a repeated request to join it."""
    grace_s: float = 30.0
    """How long requests may go on after SIGTERM."""
    max_body_bytes: int = 24 * 1024**2
    """Longest body of a request."""
    max_requests: int = 10_000
    """Most requests under way at once."""
    files_url: str = "millstream-files"
    """Where all gateways keep files: a folder, or `s3://…`, `gs://…`, `az://…`."""
    max_file_bytes: int = 2 * 1024**3
    """Longest file that may be uploaded."""
    max_batch_lines: int = 1_000_000
    """Most lines of a batch's input."""
    batch_lease_s: float = 30.0
    """How long a batch waits for its gateway, if that has died, until another goes on."""
    log_format: LogFormat = "auto"
    """Format of the log: json, console, or auto, which is console on a terminal and json elsewhere."""
    log_level: LogLevel = "info"
    """Lowest level that is logged: debug, info, warning or error; requests are at info."""
    embedded: bool = False
    """Run a server and a worker of its own, too; on loopback also as with --open."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for queue in self.queues:
            QueueKeys(queue)
        if not self.queues:
            raise InvalidRequest("--queue", self.queues, "name at least one queue")
        if not 0 <= self.port <= 65_535:
            raise InvalidRequest("--port", self.port, "must be 0 to 65535")
        for name in ABOVE_ZERO:
            if not getattr(self, name) > 0:
                raise InvalidRequest(_option(name), getattr(self, name), "must be above 0")
        for name in SECONDS:
            seconds = getattr(self, name)
            if not seconds >= 0:
                raise InvalidRequest(_option(name), seconds, "must not be negative")
            if seconds > MAX_S:
                raise InvalidRequest(_option(name), seconds, "must be at most ten years, in seconds")
        self._check_door()
        return self

    def _check_door(self) -> None:
        for origin in self.allow_origins:
            if not _ORIGIN.fullmatch(origin):
                problem = "must be an origin in lower case, `scheme://host[:port]` without a path, or `*`"
                raise InvalidRequest("--allow-origin", origin, problem)
        if self.open and not self.on_loopback:
            problem = "--open is for callers on this machine; leave it out and make keys, or give 127.0.0.1"
            raise InvalidRequest("--host", self.host, problem)
        if self.keyless and "*" in self.allow_origins:
            problem = "without keys any web page could use this gateway; name the origins"
            raise InvalidRequest("--allow-origin", "*", problem)

    @property
    def keyless(self) -> bool:
        """True if callers need no key as long as the server has never had one."""
        return self.on_loopback and (self.open or self.embedded)

    @property
    def own_queue(self) -> str | None:
        """The queue that the worker of this command serves; None: it has none."""
        return self.queues[0] if self.embedded else None

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
