"""Make a server's ACL file out of `users.acl`: for one queue, with passwords from the environment.

    python ops/deploy/acl.py --queue default > users.acl

Each role's password is in MILLSTREAM_<ROLE>_PASSWORD. The file gets their SHA-256 only.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

TEMPLATE = Path(__file__).with_name("users.acl")
NOT_IN_REDIS_7_0 = (
    "client|setinfo",
    "waitaof",
)  # a server refuses a file with an unknown command
LEAST_LETTERS = 16  # of a password: it is hashed once and without salt, so a short one can be guessed


class CannotMake(Exception):
    """A password or the queue's name is not usable; the message says what to do."""


def variable(role: str) -> str:
    return f"MILLSTREAM_{role.upper()}_PASSWORD"


def acl_file(queue: str, passwords: Mapping[str, str], without: Sequence[str] = ()) -> str:
    """The file's text. `passwords`: by the name of their variable; `without`: commands that the server does
    not have. Raises CannotMake."""
    if not re.fullmatch(r"[^{}\s]{1,100}", queue):
        raise CannotMake(f"--queue {queue!r}: 1 to 100 characters without braces or white space")
    lines: list[str] = []
    rules: dict[str, str] = {}
    for role, rule in _users(TEMPLATE.read_text("utf-8")):
        rule = " ".join(word for word in rule.split() if word.removeprefix("+") not in without)
        for other, known in rules.items():
            rule = rule.replace(f"<{other}>", known)
        rules[role] = rule.partition("<password>")[2].strip()
        rule = rule.replace("<shard>", "{ms:<queue>:[0-9]*}").replace("<queue>", _literal(queue))
        if "<password>" in rule:
            rule = rule.replace("<password>", _hash(role, passwords))
        lines.append(f"user {role} {rule}\n")
    return "".join(lines)


def _users(template: str) -> list[tuple[str, str]]:
    """Users with their rules; a rule continues in the indented lines below it."""
    text = "\n".join(line for line in template.splitlines() if line and not line.startswith("#"))
    lines = re.sub(r"\n\s+", " ", text).splitlines()
    return [(role, rule) for _, role, rule in (line.split(maxsplit=2) for line in lines)]


def _literal(queue: str) -> str:
    """The name as a pattern that matches nothing else."""
    return re.sub(r"([\\*?\[\]])", r"\\\1", queue)


def _hash(role: str, passwords: Mapping[str, str]) -> str:
    name = variable(role)
    password = passwords.get(name, "")
    if len(password) < LEAST_LETTERS:
        given = f"has {len(password)} characters" if password else "is not set"
        raise CannotMake(
            f"{name} {given}; a password has at least {LEAST_LETTERS}: "
            f'export {name}="$(openssl rand -hex 32)"'
        )
    return hashlib.sha256(password.encode()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description="Print a server's ACL file for one queue.")
    parser.add_argument("--queue", default="default")
    parser.add_argument("--redis-7.0", dest="redis_7_0", action="store_true", help="leave out newer commands")
    given = parser.parse_args()
    try:
        without = NOT_IN_REDIS_7_0 if given.redis_7_0 else ()
        sys.stdout.write(acl_file(given.queue, os.environ, without))
    except CannotMake as error:
        sys.stderr.write(f"acl.py: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
