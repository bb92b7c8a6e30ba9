"""Classifies a server's errors on a write: an outage, a full server, or damaged keys of the job."""

from __future__ import annotations

import re

from redis.exceptions import ClusterDownError, ConnectionError, OutOfMemoryError, ResponseError, TimeoutError

# Errors of a command or of the script itself. Servers append the place in the script to any refusal, so its
# presence means nothing; Redis before 7 puts it in front, with a dash before errors that it raised without
# reading the key.
_DAMAGE = re.compile(
    r"WRONGTYPE|LOST |user_script:|hash value is not|The ID specified in XADD"
    r"|Error (running|compiling) script(?!.*: -[A-Z]+ )"
)
_FULL = re.compile(r"Error running script.*: -OOM ")


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
