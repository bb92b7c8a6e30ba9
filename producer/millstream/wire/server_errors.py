"""Classifies a server's errors: an outage, a full server, damaged keys of a job, a user without the right."""

from __future__ import annotations

import re

from redis.exceptions import (
    AuthenticationError,
    ClusterDownError,
    ConnectionError,
    NoPermissionError,
    OutOfMemoryError,
    ResponseError,
    TimeoutError,
)

# Errors of a command or of the script itself. Servers append the place in the script to any refusal, so its
# presence means nothing; Redis before 7 puts it in front, with a dash before errors that it raised without
# reading the key.
_DAMAGE = re.compile(
    r"WRONGTYPE|LOST |user_script:|hash value is not|The ID specified in XADD"
    r"|Error (running|compiling) script(?!.*: -[A-Z]+ )"
)
_FULL = re.compile(r"Error running script.*: -OOM ")
# Refusals inside of scripts come without the NOPERM of a refused command.
_IN_SCRIPT = ("ACL failure in script", "The user executing the script can't")


def is_outage(error: Exception) -> bool:
    """The server, or the node of a Cluster that has the keys, does not answer."""
    return isinstance(error, OSError | ConnectionError | TimeoutError | ClusterDownError)


def is_damage(error: Exception) -> bool:
    """The job's own keys are of other types or have content that no script expects: sending it again changes
    nothing. A server that is full, loading, read-only, short of replicas or out of disk takes it later.
    """
    return isinstance(error, ResponseError) and _DAMAGE.match(str(error)) is not None


def is_full(error: Exception) -> bool:
    """The server is at its maxmemory."""
    return isinstance(error, OutOfMemoryError) or _FULL.match(str(error)) is not None


def refusal(error: Exception) -> str | None:
    """A message with the refused right and the remedy, for errors by which a server refuses the user, not the
    command: retries cannot help, only the operator can. None for any other error.
    """
    if isinstance(error, AuthenticationError):
        return f"{error}; check the user and the password of the URL"
    if isinstance(error, NoPermissionError) or (
        isinstance(error, ResponseError) and str(error).startswith(_IN_SCRIPT)
    ):
        return f"{error}; give this user the rights of its role (ops/deploy/users.acl)"
    return None
