"""Two lines have the hash of a size exactly if so many bytes of what they ask are the same."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.batch.order.beginnings import SIZES, beginnings_of

DOCUMENT = "A page of a document. " * 300  # 6,600 bytes
PAGE = "data:image/png;base64," + "iVBORw0KGgo" * 5_000


def chat(content: Any, custom_id: str = "a", **body: Any) -> Sequence[int]:
    messages = [{"role": "user", "content": content}]
    return beginnings_of({"custom_id": custom_id, "url": "/v1", "body": {"messages": messages, **body}})


def parts(*contents: str) -> list[dict[str, Any]]:
    return [
        {"type": "image_url", "image_url": {"url": one}}
        if one.startswith("data:") or one.endswith(".png")
        else {"type": "text", "text": one}
        for one in contents
    ]


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Sizes at which both begin alike; none behind one at which they do not."""
    same = [a == b for a, b in zip(one, other, strict=False)]
    assert same == sorted(same, reverse=True)
    return sum(same)


@given(same=st.integers(0, 70_000), more=st.integers(0, 70_000), letter=st.sampled_from("aé🙂"))
def test_so_many_bytes_are_compared(same: int, more: int, letter: str) -> None:
    text = letter * (same // len(letter.encode()))
    one, other = (
        beginnings_of({"url": "", "body": {"prompt": text + own + "x" * more}}) for own in ("1", "2")
    )
    before = len("\x1fNone\x1f") + len(text.encode())
    assert shared(one, other) == sum(size <= before for size in SIZES)
    assert len(one) == sum(size <= before + 1 + more + 1 for size in SIZES)


def test_custom_ids_and_sampling_make_no_difference() -> None:
    line = chat(DOCUMENT + "Who?", temperature=0, max_tokens=3)
    assert shared(line, chat(DOCUMENT + "When?", "b", seed=7, metadata={"a": "b"})) == 3
    assert shared(line, chat(parts(DOCUMENT, "When?"))) == 3


@pytest.mark.parametrize(
    "body",
    [
        {"model": "other"},
        {"tools": [{"type": "function"}]},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_what_stands_before_the_messages_does(body: dict[str, Any]) -> None:
    assert shared(chat(DOCUMENT), chat(DOCUMENT, **body)) == 0
    assert shared(chat(DOCUMENT, **body), chat(DOCUMENT, "b", **body)) == 3


def test_messages_are_told_apart_by_role_and_calls() -> None:
    turns = [{"role": role, "content": "x" * 900, "name": "n"} for role in ("user", "assistant", "user")]
    others = [turns[0], {**turns[1], "role": "tool"}, turns[2]]
    named = [turns[0], {**turns[1], "name": "m"}, turns[2]]
    one, other, third = (
        beginnings_of({"url": "", "body": {"messages": all_}}) for all_ in (turns, others, named)
    )
    assert len(one) == len(other) == 2
    assert (shared(one, other), shared(one, third)) == (0, 1)


def test_an_image_counts_as_its_tokens_and_not_as_its_bytes() -> None:
    page = chat(parts(PAGE, "What is this?"))
    assert len(page) == 3
    assert shared(page, chat(parts(PAGE, "Who wrote it?"))) == 3
    assert shared(page, chat(parts(PAGE[:-9] + "a" * 9, "What is this?"))) == 0
    assert shared(chat(parts("a.png", "Who?")), chat(parts("a.png", "When?"))) == 3
    assert shared(chat(parts("a.png", "Who?")), chat(parts("b.png", "Who?"))) == 0


def test_token_ids_and_lists_of_prompts_are_prompts() -> None:
    ids = list(range(1000))
    one, other = (beginnings_of({"url": "", "body": {"prompt": [*ids, *more]}}) for more in ([1] * 9, [2]))
    assert shared(one, other) == 3
    assert shared(one, beginnings_of({"url": "", "body": {"prompt": [7, *ids]}})) == 0
    listed = beginnings_of({"url": "", "body": {"prompt": [DOCUMENT, "Who?"]}})
    assert shared(listed, beginnings_of({"url": "", "body": {"prompt": DOCUMENT}})) == 3


def test_bodies_that_cannot_be_read_have_none() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    faulty = ({"messages": [deep]}, {"prompt": deep}, {"model": deep}, {"messages": [None, {"content": 7}]})
    for body in (None, 7, {}, *faulty):
        assert beginnings_of({"body": body}) == ()


def test_a_line_of_many_short_images_takes_little_memory() -> None:
    images = parts(*["a.png"] * 2_000)
    tracemalloc.start()
    try:
        assert len(chat(images)) == len(SIZES)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000  # 6 KB each would be 12 MB
