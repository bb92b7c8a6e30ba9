"""Whole lines: JSON or not, their custom_id, method and url, and the digest that makes the job id."""

from __future__ import annotations

from typing import Any

import pytest
from support.workers.answering_worker import completion

from millstream.batch.rows.batch_lines import BatchLine, custom_id_of, digest_of, parse, read_row
from millstream.batch.rows.faults import FaultCode, LineFault
from millstream.wire.keys import Lane, check_own_id


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
    assert row_of(completion("a", tempo=1) | {"prio": 1}).unknown == ("prio", "tempo")


def test_the_expected_answer_is_taken_from_the_metadata() -> None:
    assert row_of(completion("a", metadata={"expected": "x"})).expected == "x"
    assert row_of(completion("a")).expected is None


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
