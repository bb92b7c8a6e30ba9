"""msgpack in and out: strict in what it takes, and never any error but ProtocolError."""

from __future__ import annotations

import traceback
from typing import Any
from uuid import uuid4

import msgpack
import pytest

from millstream.errors import ProtocolError
from millstream.wire.messages.choices import Choice, TokenLogprob, TopLogprob
from millstream.wire.messages.codec import MAX_MESSAGE_BYTES, MAX_RESULT_BYTES, decode, encode, pack, unpack
from millstream.wire.messages.job_messages import ChatMessage, Request, Result


def test_messages_come_back_and_defaults_take_no_space() -> None:
    request = Request(prompt="x", metadata={"k": "v"})
    assert decode(Request, encode(request)) == request
    assert unpack(encode(request)) == {"prompt": "x", "metadata": {"k": "v"}}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not a msgpack message"),
        (b"\x82\xa1a\x01", "not a msgpack message"),  # cut off
        (b"\x81\xa1a\x01\x00", "extra data"),
        (msgpack.packb({1: "a"}), "int is not allowed for map key"),
        (msgpack.packb({"a": [{2: 3}]}), "int is not allowed for map key"),
        (msgpack.packb(msgpack.ExtType(5, b"x")), "extension type 5 is not allowed"),
        (msgpack.packb({"a": [msgpack.Timestamp(1, 2)]}), "timestamps are not allowed"),
        (msgpack.packb({"a": {"b": msgpack.Timestamp(2**33, 0)}}), "timestamps are not allowed"),
        (b"\xa2\xff\xfe", "not a msgpack message"),  # text that is not UTF-8
        (b"\xdd\xff\xff\xff\xff", "not a msgpack message"),  # a list that says it is 4 GiB long
        (b"\xc6\xff\xff\xff\xff\x00", "not a msgpack message"),
        (b"\x91" * 5000 + b"\x00", "not a msgpack message"),  # nested beyond reason
        (b"\x81" + b"\x81\xa1a" * 900 + b"\x00", "not a msgpack message"),
        (b"\x82\xa1a\x01\xa1a\x02", "names a key twice"),
        (b"\x91\x82\xa1a\x01\xa1a\x01", "names a key twice"),
        (b"\x81\xc4\x01a\x01", "bytes is not allowed for map key"),
        (b"\xa3\xed\xa0\x80", "not a msgpack message"),  # half of a surrogate pair
        (msgpack.packb(msgpack.Timestamp(1, 2)), "timestamps are not allowed"),
        (b"\xdd\x00\x10\x00\x00" + b"\x90" * 2**20, "more lists and maps than"),
        (b"\xdd\x00\x10\x00\x00" + b"\x80" * 2**20, "more lists and maps than"),
    ],
)
def test_what_is_not_a_plain_message_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        unpack(data)


def test_a_timestamp_byte_inside_a_value_is_no_timestamp() -> None:
    assert unpack(pack({"b": b"\xff\xd6\xff", "i": [-1]})) == {"b": b"\xff\xd6\xff", "i": [-1]}


def test_a_result_made_of_many_small_maps_is_read() -> None:
    """The densest that we write: log-probabilities of tokens with the shortest names."""
    names = tuple(TopLogprob(token_id=0, token="", logprob=0.0) for _ in range(20))
    logprobs = tuple(TokenLogprob(token_id=0, token="", logprob=0.0, top=names) for _ in range(2000))
    dense = Result(choices=(Choice(logprobs=logprobs),))
    assert decode(Result, encode(dense)) == dense
    turns = tuple(ChatMessage(role="u", content="") for _ in range(5000))
    assert decode(Request, encode(Request(messages=turns))).messages == turns


def test_an_error_does_not_carry_the_message_along() -> None:
    """Whoever logs it with its traceback does not log the prompt."""
    secret = uuid4().hex
    with pytest.raises(ProtocolError) as failed:
        decode(Request, pack({"prompt": secret, "deadline_ms": secret}))
    assert secret not in "".join(traceback.format_exception(failed.value))


def test_an_error_is_short_whatever_is_wrong() -> None:
    with pytest.raises(ProtocolError) as failed:
        decode(Request, pack({"prompt": "x", "metadata": {"k" * 10**6: "x"}}))
    assert len(str(failed.value)) < 1000


def test_size_is_bounded() -> None:
    assert unpack(pack(b"x" * (MAX_MESSAGE_BYTES - 5))) is not None
    assert decode(Result, pack({"model": "m" * MAX_MESSAGE_BYTES}), MAX_RESULT_BYTES).model[0] == "m"
    with pytest.raises(ProtocolError, match="over the limit of 16777216"):
        unpack(pack(b"x" * MAX_MESSAGE_BYTES))


@pytest.mark.parametrize("value", [None, 3, "text", [1]])
def test_a_message_is_a_map(value: Any) -> None:
    with pytest.raises(ProtocolError, match="Request: expected a map"):
        decode(Request, pack(value))
