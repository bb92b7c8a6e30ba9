"""What servers have in common, alone or as a group: `with` starts and removes them."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

import redis


class Startable(ABC):
    """Usable in a `with`, or by `start` and `remove`."""

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def start(self) -> Self: ...

    @abstractmethod
    def remove(self) -> None: ...

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.remove()
            raise

    def __exit__(self, *_: object) -> None:
        self.remove()


def wait_for(condition: Callable[[], bool], what: str, wait_s: float = 30.0) -> None:
    """Ask until it is so; servers that do not answer meanwhile are no error. RuntimeError after `wait_s`."""
    deadline = time.monotonic() + wait_s
    while True:
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
            if condition():
                return
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {wait_s:g} s: {what}")
        time.sleep(0.02)


def ask(port: int, *command: Any, password: str = "") -> Any:
    """One command to one server; redirections come out as redis-py's errors."""
    client = redis.Redis(port=port, password=password or None, socket_timeout=10, retry=None, protocol=2)
    with contextlib.closing(client):
        connection = client.connection_pool.get_connection()
        connection.send_command(*command)
        return connection.read_response()
