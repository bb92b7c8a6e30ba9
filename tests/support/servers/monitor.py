"""What a server was sent, as its MONITOR shows it: each command with the name of the connection that sent it,
and the commands of a script as its caller's.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections import defaultdict
from collections.abc import Iterator

import redis
from redis.client import Monitor

LINE = re.compile(r"\S+ \[\d+ (?P<sender>\S+)\] (?P<words>.*)", re.DOTALL)
WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')


class Watch:
    """`sent()` gives all since the beginning, by the connections' names ("" for those that have none)."""

    def __init__(self, admin: redis.Redis, monitor: Monitor) -> None:
        self._admin = admin
        self._monitor = monitor
        self._names: dict[str, str] = {}  # by the address of a connection
        self._caller = ""  # of the scripts' commands that follow
        self._sent: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)

    def sent(self) -> dict[str, set[tuple[str, ...]]]:
        """The first two words of each command, in small letters."""
        mark = secrets.token_hex(8)
        self._admin.echo(mark)
        while mark not in (line := str(self._monitor.connection.read_response())):
            self._read(line)
        return self._sent

    def _read(self, line: str) -> None:
        found = LINE.match(line)
        assert found is not None, line
        words = [word.lower() for word in WORD.findall(found["words"])]
        sender = found["sender"]
        if words[:2] == ["client", "setname"]:
            self._names[sender] = WORD.findall(found["words"])[2]
        if sender != "lua":
            self._caller = self._names.get(sender, "")
        self._sent[self._caller].add(tuple(words[:2]))


@contextlib.contextmanager
def watching(url: str) -> Iterator[Watch]:
    """`url`: of a user who may MONITOR."""
    with (
        contextlib.closing(redis.Redis.from_url(url, protocol=2)) as admin,
        contextlib.closing(redis.Redis.from_url(url, decode_responses=True, protocol=2)) as watcher,
        watcher.monitor() as monitor,
    ):
        yield Watch(admin, monitor)
