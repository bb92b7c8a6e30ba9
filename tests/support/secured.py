"""A server that knows no `default` user, only the roles of `ops/users.acl`, made as its page says."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

from support.servers import Server

MAKE = Path(__file__).parents[2] / "ops" / "acl.py"
ROLES = ("admin", "worker", "producer", "operator", "observer")


def variable(role: str) -> str:
    return f"MILLSTREAM_{role.upper()}_PASSWORD"


def make_acl(
    passwords: dict[str, str], queue: str = "default", check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run the program. `passwords`: by role."""
    given = {variable(role): password for role, password in passwords.items()}
    return subprocess.run(
        [sys.executable, str(MAKE), "--queue", queue],
        env={"PATH": os.environ["PATH"], **given},
        capture_output=True,
        text=True,
        check=check,
        timeout=30,
    )


class SecuredServer(Server):
    """`login(role)` is the URL of a role, `admin` a client that may everything."""

    def __init__(self, kind: str, queue: str = "default", **options: str) -> None:
        self.queue = queue
        self.passwords = {role: secrets.token_hex(16) for role in ROLES}
        file = Path(tempfile.mkdtemp(prefix="millstream-acl-")) / "users.acl"
        file.write_text(make_acl(self.passwords, queue).stdout)
        super().__init__(kind, aclfile=str(file), **options)

    def login(self, role: str) -> str:
        return f"redis://{role}:{self.passwords[role]}@127.0.0.1:{self.port}/0"

    def as_admin(self) -> contextlib.closing[redis.Redis]:
        return contextlib.closing(redis.Redis.from_url(self.login("admin"), socket_timeout=5))

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

    def _wait_ready(self, until: float) -> None:
        with self.as_admin() as admin:
            while True:
                try:
                    admin.ping()
                    return
                except redis.RedisError:
                    assert self.process is not None
                    if self.process.poll() is not None or time.monotonic() > until:
                        text = (self.folder / "server.log").read_text(errors="replace")
                        raise RuntimeError(f"{self.kind} did not start:\n{text[-2000:]}") from None
                    time.sleep(0.01)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
