"""What counts as a wrong answer, or a wrong file, of a gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chaos.door.answer import Asked, Heard
from chaos.door.file_checks import file_faults
from chaos.door.upload import Upload

ASKED = Asked("/v1/completions", {"stream": True}, " w1 w2 w3", "key")
DONE = "data: [DONE]"
ERROR = 'data: {"error": {"code": "unavailable"}}'
END = {"finish_reason": "length"}


def said(text: str, **more: Any) -> str:
    return "data: " + json.dumps({"id": "cmpl-1", "choices": [{"text": text, "finish_reason": None} | more]})


def usage(tokens: int) -> str:
    return "data: " + json.dumps({"id": "cmpl-1", "choices": [], "usage": {"completion_tokens": tokens}})


WHOLE = (": ping", said(" w1"), said(" w2 w3", **END), usage(3), DONE)


@pytest.mark.parametrize(
    ("lines", "cut", "fault"),
    [
        (WHOLE, False, ""),
        (WHOLE[:2], True, ""),
        ((*WHOLE[:2], ERROR), False, ""),
        ((), False, "ends without"),
        (WHOLE[:2], False, "ends without"),
        ((*WHOLE[:2], DONE), False, "as if whole"),
        ((said(" w1 w2 w3"), usage(3), DONE), False, "as if whole"),
        ((said(" w1 w2 w2 w3", **END), usage(3), DONE), False, "as if whole"),
        ((said(" w1 w2 w3", **END), usage(2), DONE), False, "usage says 2"),
        ((said(" w2"),), True, "another text"),
        ((*WHOLE, said(" w4")), True, "behind the end"),
        ((*WHOLE[:2], ERROR, DONE), False, "behind the end"),
    ],
)
def test_streams_that_are_not_what_they_seem(lines: tuple[str, ...], cut: bool, fault: str) -> None:
    heard = Heard()
    for line in lines:
        heard.take(line)
    found = heard.fault(ASKED, cut=cut)
    assert fault in found if fault else not found
    assert heard.ids <= {"cmpl-1"}


@pytest.mark.parametrize(
    ("ids", "deleted", "listed", "sent", "fault"),
    [
        (["a"], (), {"a": 9}, 1, ""),
        (["a", "a"], (), {"a": 9}, 3, ""),
        (["a"], ("a",), {}, 1, ""),
        ([], (), {}, 1, "never acknowledged"),
        (["a"], (), {}, 1, "not listed"),
        (["a"], ("a",), {"a": 9}, 1, "still listed"),
        (["a"], (), {"a": 9, "b": 9}, 2, "one Idempotency-Key"),
        (["a", "b"], ("b",), {"a": 9}, 2, "one Idempotency-Key"),
        (["a"], (), {"a": 9}, 0, "its end was sent 0 times"),
        (["a"], (), {"a": 8}, 1, "a part is listed"),
    ],
)
def test_files_that_are_not_what_was_uploaded(
    ids: list[str], deleted: tuple[str, ...], listed: dict[str, int], sent: int, fault: str
) -> None:
    upload = Upload("name", 9, "key", sent, ids, set(deleted))
    found = list(file_faults(upload, [{"id": id, "bytes": size} for id, size in listed.items()]))
    assert [fault in one for one in found] == [True] * bool(fault)


async def test_a_form_is_as_long_as_it_says() -> None:
    upload = Upload("name", 600_000, None)
    form = b"".join([piece async for piece in upload.pieces(0.0, None)])
    assert len(form) == upload.length
    assert upload.content in form
    assert upload.sent == 1
