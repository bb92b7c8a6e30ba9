"""A server that knows no `default` user, only the roles of `ops/deploy/users.acl`, made as its page says."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

from support.servers.monitor import Watch
from support.servers.servers import Server, binary

MAKE = Path(__file__).parents[3] / "ops" / "deploy" / "acl.py"
LIMITED = ("worker", "producer", "operator", "observer", "gateway")
ROLES = ("admin", *LIMITED)


def variable(role: str) -> str:
    return f"MILLSTREAM_{role.upper()}_PASSWORD"


def make_acl(
    passwords: dict[str, str], queue: str = "default", *flags: str, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run the program. `passwords`: by role."""
    given = {variable(role): password for role, password in passwords.items()}
    return subprocess.run(
        [sys.executable, str(MAKE), "--queue", queue, *flags],
        env={"PATH": os.environ["PATH"], **given},
        capture_output=True,
        text=True,
        check=check,
        timeout=30,
    )


def acl_file_of(kind: str, passwords: dict[str, str], queue: str = "default") -> str:
    """The file for this machine's server of the kind."""
    executable = binary(kind)
    assert executable is not None, f"no {kind} server on this machine"
    version = subprocess.run([executable, "--version"], capture_output=True, text=True, check=True).stdout
    flags = ["--redis-7.0"] if " v=7.0." in version else []
    return make_acl(passwords, queue, *flags).stdout


class SecuredServer(Server):
    """`login(role)` is the URL of a role, `admin` a client that may everything."""

    def __init__(self, kind: str, queue: str = "default", **options: str) -> None:
        self.queue = queue
        self.passwords = {role: secrets.token_hex(16) for role in ROLES}
        self.rules = acl_file_of(kind, self.passwords, queue)
        file = Path(tempfile.mkdtemp(prefix="millstream-acl-")) / "users.acl"
        file.write_text(self.rules)
        super().__init__(kind, aclfile=str(file), **options)

    def login(self, role: str) -> str:
        return f"redis://{role}:{self.passwords[role]}@127.0.0.1:{self.port}/0"

    def admin(self) -> redis.Redis:
        return redis.Redis.from_url(self.login("admin"), socket_timeout=5)

    def as_admin(self) -> contextlib.closing[redis.Redis]:
        return contextlib.closing(self.admin())

    def flush(self) -> None:
        with self.as_admin() as admin:
            admin.flushall()
            admin.script_flush()
            admin.acl_log_reset()

    def denied(self) -> list[tuple[str, str, str]]:
        """(user, what kind of thing, which) of everything that was refused since `flush`, inside scripts,
        too."""
        with self.as_admin() as admin:
            log: list[dict[str, Any]] = admin.acl_log()
        return sorted((_text(e["username"]), _text(e["reason"]), _text(e["object"])) for e in log)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def acl_lines(kind: str, passwords: dict[str, str]) -> list[list[str]]:
    """What `ACL SETUSER` takes to make these users on a server that runs."""
    rules = acl_file_of(kind, {"admin": "x" * 16} | passwords)
    lines = [re.findall(r"\([^)]*\)|\S+", line)[1:] for line in rules.splitlines()]
    return [line for line in lines if line[0] in passwords]


def by_role(watch: Watch) -> dict[str, set[tuple[str, ...]]]:
    """What was sent by connections that have their role's name, or `<role>:…`, or that of a worker."""
    sent: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
    for name, commands in watch.sent().items():
        own = name.removeprefix("millstream-")  # of a command
        role = "worker" if name.startswith(socket.gethostname()) else own.partition(":")[0]
        sent[role] |= commands
    return sent


def listed(server: SecuredServer, role: str) -> set[str]:
    """The commands that the role's rules name."""
    [rule] = [line for line in server.rules.splitlines() if line.startswith(f"user {role} ")]
    return set(re.findall(r"[ (]\+([a-z|]+)", rule))
