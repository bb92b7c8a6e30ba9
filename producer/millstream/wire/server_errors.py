"""What a server's refusal of a write means for the job: wait, or never."""

from __future__ import annotations

import re

from redis.exceptions import ClusterDownError, ConnectionError, OutOfMemoryError, ResponseError, TimeoutError

# What a command met, or the script itself. Servers put the place in the script behind any refusal, so that it
# tells nothing; Redis before 7 in front, and a dash before what it refused without a look at the key.
_DAMAGE = re.compile(
    r"WRONGTYPE|LOST |user_script:|hash value is not|The ID specified in XADD"
    r"|Error (running|compiling) script(?!.*: -[A-Z]+ )"
)
_FULL = re.compile(r"Error running script.*: -OOM ")


def is_outage(error: Exception) -> bool:
    """The server, or the node of a Cluster that has the keys, does not answer."""
    return isinstance(error, OSError | ConnectionError | TimeoutError | ClusterDownError)


def is_damage(error: Exception) -> bool:
    """The job's own keys are of other types or hold what no script expects: sending it again changes nothing.
    A server that is full, loading, read-only, short of replicas or out of disk takes it later."""
    return isinstance(error, ResponseError) and _DAMAGE.match(str(error)) is not None


def is_full(error: Exception) -> bool:
    """The server is at its maxmemory."""
    return isinstance(error, OutOfMemoryError) or _FULL.match(str(error)) is not None
