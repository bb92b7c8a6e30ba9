"""What is wrong with a request, in the words that reach its sender."""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidRequest
from millstream.wire.messages.codec import pack
from millstream.wire.messages.messages import read_request


def refused(fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read_request(pack(fields))
    return caught.value


@pytest.mark.parametrize(
    ("fields", "field", "says"),
    [
        ({"prompt": 5}, "prompt", "must be a string (got 5)"),
        ({"prompt": b"\xff"}, "prompt", "must be valid Unicode text; replace what is not (got b'\\xff')"),
        ({"messages": "Hi"}, "messages", "must be a list (got 'Hi')"),
        ({"messages": [5]}, "messages.0", "must be a map (a JSON object) (got 5)"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "is missing; add it (got None)"),
        ({"token_ids": [1, -1]}, "token_ids.1", "must be at least 0 (got -1)"),
        ({"lane": "fast"}, "lane", "must be 'interactive' or 'batch' (got 'fast')"),
        ({"metadata": 5}, "metadata", "must be a map (a JSON object) (got 5)"),
        ({"stream": "maybe"}, "stream", "must be true or false (got 'maybe')"),
        ({"tenant": "t" * 600}, "tenant", "must have at most 512 characters; shorten it (got 'ttt"),
        ({"version": "one"}, "version", "must be a whole number (got 'one')"),
        ({"sampling": {"n": 1.5}}, "sampling.n", "must be a whole number (got 1.5)"),
        ({"sampling": {"n": 17}}, "sampling.n", "must be at most 16 (got 17)"),
        ({"sampling": {"top_p": float("nan")}}, "sampling.top_p", "must be a finite number (got nan)"),
        ({"sampling": {"top_p": 0}}, "sampling.top_p", "must be above 0 (got 0)"),
        ({"sampling": {"stop": ["x"] * 17}}, "sampling.stop", "must have at most 16 items; leave some out"),
        (
            {"sampling": {"logit_bias": {"x": 1.0}}},
            "sampling.logit_bias.x",
            "a key of it must be a whole number (got 'x')",
        ),
        (
            {"sampling": {"min_tokens": 9, "max_tokens": 5}},
            "sampling.min_tokens",
            "is above max_tokens 5; lower it (got 9)",
        ),
        (
            {"sampling": {"top_logprobs": 2}},
            "sampling.top_logprobs",
            "needs logprobs: true; set it, or leave top_logprobs out (got 2)",
        ),
        ({"prompt": ""}, "prompt", "is empty; give some input (got '')"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_field_value_and_remedy_are_named(fields: dict[str, Any], field: str, says: str) -> None:
    inputs = {} if fields.keys() & {"prompt", "messages", "token_ids"} else {"prompt": "x"}
    error = refused(inputs | fields)
    assert error.field == field
    assert str(error).startswith(f"{field}: {says}")


def test_what_is_answered_is_short_however_long_the_request() -> None:
    """And has no more of a prompt than its beginning."""
    assert len(str(refused({"prompt": "x", "metadata": {"k" * 10**6: 5}}))) < 400
    assert len(refused({"prompt": "x", "metadata": {"k" * 10**6: 5}}).field) < 100
    secret = uuid4().hex
    assert secret not in str(refused({"prompt": "x" * 2**22 + secret}))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_an_invalid_one(data: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        read_request(data)
