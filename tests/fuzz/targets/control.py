"""What is published to workers: cancellations and hints, by anybody."""

from __future__ import annotations

from random import Random

from support.workers.jobs import SHARD, IdleEngine, held_job

from fuzz.mutation import damage
from fuzz.target import Refused, Target
from fuzz.values import blob, text, weighted
from millstream.wire.connection import Endpoint
from millstream.wire.messages.job_messages import State
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.table import JobTable
from millstream_worker.leases.control import Control

HELD = "0-held"


def _message(chance: Random) -> bytes:
    return weighted(
        chance,
        (1, lambda _: f"cancel {HELD}".encode()),
        (1, lambda _: b"released"),
        (3, lambda c: damage(c, f"cancel {HELD}".encode())),
        (2, lambda c: b"cancel " + text(c).encode()),
        (1, lambda c: damage(c, b"released")),
        (1, lambda c: b"look " + text(c).encode()),
        (1, blob),
    )


def _deliver(message: bytes) -> None:
    """The job that it names is cancelled, and no other."""
    hints: list[bytes] = []
    looks: list[object] = []
    table, job = JobTable(EngineQueue(IdleEngine())), held_job("held")
    table.take(job)
    control = Control(
        Endpoint.of("redis://none"), "w", [SHARD], table,
        lambda: hints.append(message), lambda *look: looks.append(look),
    )  # fmt: skip
    control.deliver(SHARD.control, message)
    cancelled = job.phase.has_ended
    assert cancelled == (message == f"cancel {HELD}".encode())
    assert bool(hints) == (message == b"released")
    assert not cancelled or job.end.state is State.CANCELLED
    assert bool(looks) == message.startswith(b"look ")
    if not (cancelled or hints or looks):
        raise Refused(f"{len(message)} bytes")


TARGETS = (Target("control", _message, _deliver, (Refused,), share=0.5),)
