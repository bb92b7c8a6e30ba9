"""Frames survive the trip, in whatever pieces the bytes arrive."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engine.ready import INFO

from millstream_worker.engine.protocol import frames, outputs
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.request import (
    EngineRequest,
    GrammarSpec,
    ImageSpan,
    LimitSpec,
    SamplingSpec,
)
from millstream_worker.images.messages import PackedArray

REQUEST = EngineRequest(
    handle=7,
    prompt=(1, 2, 3),
    max_tokens=5,
    sampling=SamplingSpec(
        temperature=0.5, logit_bias=((3, -1.5),), end_ids=(2,), top_logprobs=2, seed=-(2**63)
    ),
    choices=2,
    outputs=((4,), ()),
    done=(1,),
    tenant="a",
    alone=True,
    prediction=(5, 6),
    grammar=GrammarSpec("regex", "a+", thought_end=9),
    limits=LimitSpec(b"\x06", ((3,), (4, 5)), 7, None, 9),
    images=(ImageSpan(b"\x00\xff", ((1, 3), (5, 2))), ImageSpan(b"", ())),
)
PIXELS = PackedArray("pixel_values", "uint8", (1, 2), b"\x00\xff")
STEP = outputs.Step(
    handles=[7, 8],
    tokens=[11, 12],
    finished=[(8, "stop")],
    admitted=[(7, 16)],
    logprobs=[(0, -0.5, [11, 3], [-0.5, -1.25])],
    stats=outputs.EngineStats(rows_running=2, step_s=0.01),
    drafts=[(7, 4, 3)],
)
FRAMES: list[frames.Frame] = [
    frames.Configure(EngineConfig("m", kv_memory="2GiB")),
    frames.Add(REQUEST),
    frames.HoldImage("a", b"\x00\xff", 5, (PIXELS, PackedArray("image_sizes", "int64", (0,), b""))),
    frames.DropImage("a", b"\x00\xff"),
    frames.Abort((1, 2)),
    frames.Stop(),
    frames.LoadProgress("reading weights"),
    frames.Ready(INFO),
    frames.Found("tiny", "0123abcd"),
    frames.LoadFailed("no such folder"),
    outputs.Refused(7, "prompt", "too long"),
    outputs.Compiled(7, 0.25),
    frames.Beat("step", 1.5),
    frames.LastWords("out of memory"),
    STEP,
]


def plain(value: object) -> object:
    """Lists as tuples: msgpack has only one of the two."""
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


def same(a: frames.Frame, b: frames.Frame) -> bool:
    if isinstance(a, outputs.Step) and isinstance(b, outputs.Step):
        return all(plain(getattr(a, name)) == plain(getattr(b, name)) for name in a.__slots__)
    return a == b


@given(st.lists(st.sampled_from(FRAMES), max_size=6), st.integers(1, 40))
def test_frames_arrive_whole_from_any_pieces(sent: list[frames.Frame], piece: int) -> None:
    data = b"".join(map(frames.encode, sent))
    buffer = frames.FrameBuffer()
    got = [frame for at in range(0, len(data), piece) for frame in buffer.feed(data[at : at + piece])]
    assert len(got) == len(sent)
    assert all(map(same, got, sent))


def test_every_kind_of_frame_is_covered() -> None:
    assert {type(frame) for frame in FRAMES} == set(frames._KINDS.values())


class Built(tuple[int, ...]):
    """Counts how often one is made."""

    made = 0

    def __new__(cls, ids: Iterable[int]) -> Built:
        cls.made += 1
        return super().__new__(cls, ids)


def test_a_long_prompt_is_not_copied_on_its_way_into_bytes() -> None:
    prompt = Built(range(100))
    (frame,) = frames.FrameBuffer().feed(frames.encode(frames.Add(EngineRequest(1, prompt, 5))))
    assert isinstance(frame, frames.Add)
    assert frame.request.prompt == tuple(range(100))
    assert Built.made == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"\x90", b"\x05", b"\x91\xa4none", b"\x91\xa4step", b"\x92\xa3add\x90", b"\x91" * 2000],
)
def test_what_is_no_frame_is_told(body: bytes) -> None:
    with pytest.raises(frames.BadFrame, match=f"{len(body)} bytes that are not a frame"):
        list(frames.FrameBuffer().feed(len(body).to_bytes(4, "big") + body))


def test_an_oversized_frame_is_refused_before_it_is_read() -> None:
    with pytest.raises(frames.BadFrame, match="over the limit"):
        list(frames.FrameBuffer().feed(b"\xff\xff\xff\xff"))
