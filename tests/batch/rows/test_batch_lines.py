"""Whole lines: JSON or not, their custom_id, method and url, and the digest that makes the job id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from support.wire.image_files import data_url, png
from support.workers.answering_worker import completion

from millstream.batch.rows import batch_lines
from millstream.batch.rows.batch_lines import BatchLine, custom_id_of, digest_of, parse, read_row
from millstream.batch.rows.faults import FaultCode, LineFault, faults_only
from millstream.batch.rows.line_splitter import MAX_LINE_BYTES
from millstream.wire.keys import Lane, check_own_id
from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import Request


def row_of(fields: Any) -> BatchLine:
    custom_id = custom_id_of(fields)
    return read_row(1, custom_id, fields, lane=Lane.BATCH, tenant="")


@pytest.mark.parametrize(
    ("data", "code", "problem"),
    [
        (b"{", FaultCode.INVALID_JSON, "not JSON"),
        (b"{}{}", FaultCode.INVALID_JSON, "not JSON: Extra data"),
        (b'{"a": NaN}', FaultCode.INVALID_JSON, "NaN is no JSON number"),
        (b"[" * 100_000, FaultCode.INVALID_JSON, "nested too deeply"),
        (b"9" * 5000, FaultCode.INVALID_JSON, "not JSON"),
        (b'{"a": "\xff"}', FaultCode.INVALID_ENCODING, "not UTF-8 (byte 8 of the line)"),
        (b"[1]", FaultCode.NOT_AN_OBJECT, "got a list"),
        (b"5", FaultCode.NOT_AN_OBJECT, "got a number"),
        (b'"x"', FaultCode.NOT_AN_OBJECT, "got a text"),
        (b"null", FaultCode.NOT_AN_OBJECT, "got null"),
    ],
)
def test_lines_that_are_no_objects(data: bytes, code: str, problem: str) -> None:
    with pytest.raises(LineFault) as caught:
        parse(data)
    assert caught.value.code == code
    assert problem in caught.value.message


def test_lines_have_images_and_digests_of_them() -> None:
    def line(*urls: str) -> dict[str, Any]:
        content = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        body = {"messages": [{"role": "user", "content": [*content, {"type": "text", "text": "Read."}]}]}
        return {"custom_id": "a", "url": "/v1/chat/completions", "body": body | {"seed": 1}}

    one, other = row_of(line(data_url(png(1)))), row_of(line(data_url(png(2))))
    [request] = one.requests
    assert [image.data for image in request.images] == [png(1)]
    assert (one.digest, one.answer_key) != (other.digest, other.answer_key)
    assert row_of(line(data_url(png(1)))).answer_key == one.answer_key
    with pytest.raises(LineFault) as caught:
        row_of(line("scan.png"))
    assert caught.value.field == "body.messages[0].content[0].image_url.url"
    assert "local files are read by `batch run --media DIR`" in caught.value.message
    assert MAX_LINE_BYTES == 24 * 1024**2


class Panic(BaseException):
    """As a library in Rust raises it."""


@pytest.mark.parametrize(
    ("error", "code", "field"),
    [
        (ZeroDivisionError("secret"), "unreadable_request", None),
        (StopIteration("secret"), "unreadable_request", None),
        (Panic("secret"), "unreadable_request", None),
        (OverflowError("secret"), FaultCode.INVALID_FIELD, "body"),
        (RecursionError("secret"), FaultCode.INVALID_FIELD, "body"),
    ],
)
def test_whatever_reading_a_line_raises_is_its_fault(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: str, field: str | None
) -> None:
    def read(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(batch_lines, "read_body", read)
    with pytest.raises(LineFault, match=type(error).__name__) as caught:
        row_of(completion("a"))
    assert (caught.value.code, caught.value.field) == (code, field)
    assert "secret" not in caught.value.message


def test_what_ends_the_process_is_none() -> None:
    @faults_only
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"custom_id": None}, FaultCode.MISSING_CUSTOM_ID, "custom_id"),
        ({"custom_id": 5}, FaultCode.INVALID_FIELD, "custom_id"),
        ({"custom_id": ""}, FaultCode.INVALID_FIELD, "custom_id"),
        ({"custom_id": "x" * 513}, FaultCode.INVALID_FIELD, "custom_id"),
        ({"custom_id": "\ud800"}, FaultCode.INVALID_FIELD, "custom_id"),
        ({"method": "GET"}, FaultCode.INVALID_FIELD, "method"),
        ({"url": None}, FaultCode.UNKNOWN_URL, "url"),
        ({"url": "/v1/embeddings"}, FaultCode.UNKNOWN_URL, "url"),
        ({"url": ["/v1/completions"]}, FaultCode.UNKNOWN_URL, "url"),
        ({"body": None}, FaultCode.INVALID_FIELD, "body"),
        ({"body": "x"}, FaultCode.INVALID_FIELD, "body"),
        ({"body": {"prompt": "half \ud83d"}}, FaultCode.INVALID_FIELD, "body"),
    ],
)
def test_what_is_wrong_around_the_body(changes: dict[str, Any], code: str, field: str) -> None:
    with pytest.raises(LineFault) as caught:
        row_of(completion("a") | changes)
    assert caught.value.code == code
    assert caught.value.field == field
    caught.value.message.encode()


def test_unknown_fields_of_the_line_are_reported_too() -> None:
    assert row_of(completion("a", tempo=1) | {"prio": 1}).ignored == ("prio", "tempo")


def test_the_expected_answer_is_taken_from_the_metadata() -> None:
    assert row_of(completion("a", metadata={"expected": "x"})).expected == "x"
    assert row_of(completion("a")).expected is None


def test_an_encoded_row_has_the_encoded_requests_alone() -> None:
    line = completion("a", ["one", "two"])
    plain, encoded = (
        read_row(1, "a", line, lane=Lane.BATCH, tenant="", encoded=asked) for asked in (False, True)
    )
    assert [codec.decode(Request, one.payload) for one in encoded.encoded] == list(plain.requests)
    assert (encoded.requests, plain.encoded) == ((), ())
    assert encoded.size == plain.size


def test_the_digest_is_of_custom_id_and_content() -> None:
    first = row_of(completion("a", max_tokens=5))
    same = row_of(dict(reversed(completion("a", max_tokens=5).items())))
    assert first.digest == same.digest
    others = [
        completion("b", max_tokens=5),
        completion("a", max_tokens=6),
        completion("a", "hi", max_tokens=5),
    ]
    assert len({first.digest, *(row_of(other).digest for other in others)}) == 4
    check_own_id(f"run.{first.digest}.3")


def test_the_keys_of_a_schema_are_content_in_their_order() -> None:
    """And a line without a format has the digest that it had before there were formats: its run goes on."""
    one, other = {"b": {}, "a": {}}, {"a": {}, "b": {}}

    def openai(schema: object) -> dict[str, object]:
        return {"type": "json_schema", "json_schema": {"schema": schema}}

    for make in (
        lambda schema: {"response_format": openai(schema)},
        lambda schema: {"structured_outputs": {"json": schema}},
        lambda schema: {"guided_json": schema},
    ):
        digests = [row_of(completion("a", **make(schema))).digest for schema in (one, other)]
        assert digests[0] != digests[1]
        line = completion("a", **make(one))
        assert row_of(dict(reversed(line.items()))).digest == digests[0]
    plain = row_of(completion("a", max_tokens=5, temperature=0))
    assert plain.digest == "4c1df6b36423a8aa8ee902ff57165bf2"
    text = row_of(completion("a", response_format={"type": "text"}))
    assert text.digest == "5eff258a9b0bcdadc3476fa81a667c7d"


def test_the_order_of_a_tools_parameters_is_part_of_a_line() -> None:
    """Its arguments have that order."""

    def digest(*names: str, **more: Any) -> str:
        schema = {"type": "object", "properties": {name: {} for name in names}}
        tools = [{"type": "function", "function": {"name": "get", "parameters": schema}}]
        body = {
            "messages": [{"role": "user", "content": "hi"}],
            **({"tools": tools} if names else {}),
            **more,
        }
        return digest_of("a", {"custom_id": "a", "url": "/v1/chat/completions", "body": body})

    assert len({digest(), digest("a", "b"), digest("b", "a"), digest("a", "b", tool_choice="none")}) == 4


def key(body: Mapping[str, Any], url: str = "/v1/completions", queue: str | None = None) -> bytes | None:
    line = {"custom_id": "a", "url": url, "body": body}
    return read_row(1, custom_id_of(line), line, lane=Lane.BATCH, tenant="", queue=queue).answer_key


def test_whatever_an_answer_depends_on_makes_lines_different() -> None:
    chat = {"messages": [{"role": "user", "content": "x"}], "temperature": 0}
    tool: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    two = [tool, {"type": "function", "function": {"name": "g"}}]
    order = [{"type": "object", "properties": {one: {} for one in names}} for names in ("ab", "ba")]
    formats = [{"type": "json_schema", "json_schema": {"name": "s", "schema": schema}} for schema in order]
    more: list[dict[str, Any]] = [
        {}, {"messages": [{"role": "system", "content": "x"}]}, {"temperature": 0.5, "seed": 1}, {"seed": 1},
        {"max_tokens": 5}, {"n": 2}, {"stop": "."}, {"logprobs": True}, {"top_p": 0.5}, {"ignore_eos": True},
        {"logit_bias": {"5": 1}}, {"presence_penalty": 1}, {"tools": [tool]}, {"tools": two},
        {"tools": [tool], "tool_choice": "required"}, {"tools": [tool], "parallel_tool_calls": False},
        {"prediction": {"type": "content", "content": "x"}}, {"response_format": {"type": "json_object"}},
        *({"response_format": one} for one in formats), {"chat_template_kwargs": {"a": 1}},
        {"model": "other"},
    ]  # fmt: skip
    keys = [key(chat | one, "/v1/chat/completions") for one in more]
    keys += [key({"prompt": "x", "temperature": 0}), key({"prompt": [1], "temperature": 0})]
    assert None not in keys
    assert len(set(keys)) == len(keys)


def test_what_no_answer_depends_on_leaves_lines_equal() -> None:
    plain = {"prompt": "x", "temperature": 0}
    for more in ({"metadata": {"expected": "y"}}, {"user": "me"}, {"seed": None}, {"model": "default"}):
        assert key(plain | more) == key(plain), more
    assert key(plain | {"model": "a"}, queue="q") == key(plain | {"model": "b"}, queue="q")


def test_a_sampled_line_is_equal_to_none() -> None:
    """Nor is one that has to be computed itself."""
    for sampled in (
        {},
        {"temperature": 0, "cache": {"no-cache": True}},
        {"temperature": 0.01},
        {"temperature": None},
        {"seed": None},
        {"top_k": 1},
    ):
        assert key({"prompt": "x", **sampled}) is None, sampled
    assert key({"prompt": "x", "seed": 0}) is not None
