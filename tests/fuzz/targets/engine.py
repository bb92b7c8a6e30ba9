"""Frames between the front and its engine."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from fuzz import valid
from fuzz.mutation import damage
from fuzz.target import Target
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


TARGETS = (Target("frames", _stream, _read, (BadFrame,), share=3),)
