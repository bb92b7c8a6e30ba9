"""The scripts of the protocol as typed calls, free of I/O: `run` sends one, `run_many` many at once.

    reply = await run(redis, calls.submit(keys, ...))

Scripts read times from the server's clock; all durations are milliseconds. Every call is safe to repeat when
its reply was lost.
"""

from __future__ import annotations

from millstream.wire.calls.attempt import append, dead_letter, finish, isolate, release, renew, retry, start
from millstream.wire.calls.job_calls import Forgotten, cancel, expire_one, forget, submit
from millstream.wire.calls.lane_calls import join, take
from millstream.wire.calls.scripts import ScriptCall, run, run_many
from millstream.wire.calls.upkeep import (
    discard,
    drop_consumer,
    expire,
    lane_entry,
    look,
    promote,
    reclaim,
    scan_pending,
)
from millstream.wire.messages.script_replies import Claim

__all__ = [
    "Claim",
    "Forgotten",
    "ScriptCall",
    "append",
    "cancel",
    "dead_letter",
    "discard",
    "drop_consumer",
    "expire",
    "expire_one",
    "finish",
    "forget",
    "isolate",
    "join",
    "lane_entry",
    "look",
    "promote",
    "reclaim",
    "release",
    "renew",
    "retry",
    "run",
    "run_many",
    "scan_pending",
    "start",
    "submit",
    "take",
]
