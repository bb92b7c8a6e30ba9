"""Frames between the front and its engine, and requests into the scheduler."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

from support.engine.brain import ask, rig_of

from fuzz import valid
from fuzz.mutation import damage
from fuzz.target import Refused, Target
from fuzz.values import blob, integer, some, weighted
from millstream_worker.engine.protocol import frames, outputs
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.frames import BadFrame, FrameBuffer
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec

Bytes = tuple[bytes, list[int]]  # what comes, and where it is cut


def _frame(chance: Random) -> frames.Frame:
    handle, stats = chance.randrange(99), outputs.EngineStats()
    spec = SamplingSpec(logit_bias=((1, 0.5),), end_ids=(9,), seed=chance.randrange(-(2**63), 2**63))
    prompt = tuple(valid.token_ids(chance))
    logprobs = [(0, -0.5, [1], [-0.5])]
    return weighted(
        chance,
        (1, lambda _: frames.Configure(EngineConfig("m"))),
        (2, lambda _: frames.Add(EngineRequest(handle, prompt, 5, spec, outputs=((1,), ()), tenant="t"))),
        (1, lambda c: frames.Abort(tuple(some(c, integer)))),
        (1, lambda _: frames.Stop()),
        (1, lambda _: frames.Beat("step", 0.5)),
        (1, lambda _: outputs.Refused(handle, "prompt", "no")),
        (1, lambda _: frames.LastWords("out of memory")),
        (2, lambda _: outputs.Step([handle], [1], [(handle, "stop")], [(handle, 0)], logprobs, stats)),
    )


def _stream(chance: Random) -> Bytes:
    whole = b"".join(frames.encode(_frame(chance)) for _ in range(chance.randrange(4)))
    data = weighted(
        chance,
        (1, lambda _: whole),
        (1, lambda c: whole + blob(c)),
        (3, lambda c: _in_its_frame(c, whole)),
        (1, lambda c: damage(c, whole)),
    )
    return data, sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(4)))


def _in_its_frame(chance: Random, data: bytes) -> bytes:
    """Damage with the right length before it: it comes as far as the decoder."""
    body = damage(chance, data[4:])
    return len(body).to_bytes(4, "big") + body


def _read(case: Bytes) -> None:
    data, cuts = case
    buffer, found = FrameBuffer(), []
    edges = [0, *cuts, len(data)]
    for start, end in pairwise(edges):
        found += list(buffer.feed(data[start:end]))
    assert all(isinstance(frame, frames.Frame) for frame in found)
    assert list(FrameBuffer().feed(data)) == found or "nan" in repr(found), "the cuts change the frames"


# --- requests


def _requests(chance: Random) -> list[dict[str, Any]]:
    return [_request(chance) for _ in range(chance.randrange(1, 5))]


def _request(chance: Random) -> dict[str, Any]:
    return {
        "prompt": chance.choice((0, 1, 3, 17, 60, 180, 199, 200, 300)),
        "max_tokens": chance.choice((-1, 0, 1, 2, 9, 30, 2**31)),
        "min_tokens": chance.choice((0, 0, 3, 2**24)),
        "choices": chance.choice((1, 1, 2, 3)),
        "priority": chance.choice((0, 1)),
        "deadline_ms": chance.choice((None, 1, 2**53)),
        "alone": chance.random() < 0.1,
        "salt": chance.choice(("", "a")),
        "steps": chance.randrange(4),
        "abort": chance.random() < 0.2,
    }


def _compute(case: list[dict[str, Any]]) -> None:
    """Refused with its field, or computed to its end; then the engine holds nothing."""
    rig, taken = rig_of(), []
    for place, asked in enumerate(case):
        asked = dict(asked)
        steps, abort = asked.pop("steps"), asked.pop("abort")
        request = ask(1 + 16 * place, asked.pop("prompt"), **asked)
        if not 1 <= len(request.prompt) < rig.longest or request.max_tokens < 1:
            refusal = rig.scheduler.add(request, rig.now)
            assert refusal is not None, "what can never run was taken"
            assert refusal.field in ("prompt", "max_tokens")
            continue
        rig.add(request)
        taken.append(request.handle)
        for _ in range(steps):
            rig.step()
        if abort:
            rig.abort(*range(request.handle, request.handle + request.choices))
    if not taken:
        raise Refused("every one with its field")
    rig.run()


TARGETS = (
    Target("frames", _stream, _read, (BadFrame,), share=3),
    Target("engine-requests", _requests, _compute, (Refused,), share=0.02),
)
