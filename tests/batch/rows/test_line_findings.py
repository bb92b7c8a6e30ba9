"""What lines ask for that nobody may have meant, and their tokens, before any of them runs."""

from __future__ import annotations

from typing import Any

import pytest
from support.workers.answering_worker import completion

from millstream.batch.rows.batch_lines import parse
from millstream.batch.rows.faults import FIRST_LINES, FirstLines, LineFault, invalid
from millstream.batch.rows.line_findings import LineFindings
from millstream.errors import InvalidRequest


def chat(text: Any = "hello you", **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"custom_id": "c", "url": "/v1/chat/completions", "body": {"messages": messages, **body}}


def found(*lines: dict[str, Any]) -> LineFindings:
    findings = LineFindings()
    for line in lines:
        findings.add(line)
    return findings


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (chat(max_token=4), "max_token in 1 line (did you mean max_tokens?)"),
        (chat(maxTokens=4), "maxTokens in 1 line (did you mean max_tokens?)"),
        (completion("a", tempo=1), "tempo in 1 line"),
        (chat() | {"max_tokens": 4}, "max_tokens in 1 line (known, but not in that place)"),
        (chat() | {"costum_id": 4}, "costum_id in 1 line (did you mean custom_id?)"),
        (chat(top_k=3, store=False, seed=None), ""),
        (chat(user="u"), "user in 1 line"),
        (completion("a", top_logprobs=1), ""),  # refused
        (chat(**{"bell\a": 1}), "bell\\x07 in 1 line"),
    ],
)
def test_unknown_fields_are_told_with_what_was_meant(line: dict[str, Any], told: str) -> None:
    assert found(line).told_unread() == told


def test_unknown_fields_of_messages_are_told() -> None:
    line = chat()
    line["body"]["messages"][0]["contnt"] = "x"
    assert found(line, line).told_unread() == "messages.contnt in 2 lines (did you mean content?)"


def test_a_field_that_a_server_has_is_not_unknown() -> None:
    findings = found(chat(user="u", tempo=1, max_token=2))
    seen = findings.told_unread(unknown_only=True)
    assert seen == "tempo in 1 line, max_token in 1 line (did you mean max_tokens?)"


def test_names_inside_of_fields_are_known_too() -> None:
    part = {"type": "text", "text": "x", "cache_control": {}, "refusal": "x"}
    function = {"name": "f", "cache_control": {}, "defer_loading": True, "title": "x"}
    tool = {"type": "function", "function": function, "cache_control": {}, "defer_loading": True}
    findings = found(chat([part], tools=[tool, {"fnction": {}}]))
    assert len(findings.unread) == 8
    assert findings.told_unread(unknown_only=True) == (
        "tools.fnction in 1 line (did you mean function?), tools.function.title in 1 line, "
        "messages.content.refusal in 1 line"
    )


def test_many_unknown_names_are_cut() -> None:
    told = found(*(chat(**{f"field_{i}x": 1}) for i in range(1200))).told_unread()
    assert told.endswith("991 other names")


def test_answers_without_a_bound_are_counted() -> None:
    findings = found(
        chat(), chat(max_tokens=None), chat(max_tokens=5), chat(max_completion_tokens=7, n=2), completion("a")
    )
    assert (findings.lines, findings.unbounded) == (5, 2)
    assert findings.output_tokens == 5 + 2 * 7 + 16  # the API's default of completions


def test_prompts_are_estimated_from_their_bytes() -> None:
    assert found(completion("a", "x" * 400)).prompt_tokens == 100
    assert found(completion("a", [1, 2, 3])).prompt_tokens == 3
    assert found(chat("ä" * 198)).prompt_tokens == 4 + 100  # with its role
    assert found(chat([{"type": "text", "text": "x" * 392}])).prompt_tokens == 4 + 100
    assert found(chat("x" * 396, tools=[{"type": "function"}])).prompt_tokens > 4 + 4 + 100


def test_each_prompt_of_a_list_is_estimated() -> None:
    findings = found(completion("a", ["x" * 400, "x" * 40], n=2), completion("b", [[1, 2, 3], [4]]))
    assert (findings.prompt_tokens, findings.output_tokens) == (100 + 10 + 3 + 1, 2 * 2 * 16 + 2 * 16)
    assert findings.too_long({"default": 115}) == 1
    assert findings.too_long({"default": 116}) == 0


def test_a_cut_prompt_is_estimated_as_it_is_cut() -> None:
    cut = completion("a", ["x" * 400, "x" * 8], truncate_prompt_tokens=10)
    findings = found(cut, completion("b", "x" * 400, truncate_prompt_tokens="no"))
    assert findings.prompt_tokens == 10 + 2 + 100
    assert findings.too_long({"default": 26}) == 1


def test_lines_longer_than_their_model_are_counted() -> None:
    findings = found(
        completion("a", "x" * 400, max_tokens=28), completion("a", "x" * 400, max_tokens=29, model="big")
    )
    assert findings.too_long({"default": 128, "big": 128}) == 1
    assert findings.too_long({"default": 127, "big": 200}) == 1
    assert findings.too_long({"other": 1}) == 0
    assert findings.too_long({"one": 100}, "one") == 2


@pytest.mark.parametrize(
    "body",
    [
        None,
        {"messages": "x", "max_tokens": "many", "n": "two", "model": 5},
        {"messages": [None, {"role": 5}], "max_tokens": 1, "max_completion_tokens": 2},
        {"messages": {"a": [[[]]]}, "tools": 5, "max_tokens": 10**400, "n": -1},
        {"messages": [{"content": "\ud800"}], "tools": "\ud800"},
    ],
)
def test_invalid_lines_raise_nothing(body: Any) -> None:
    for url in ("/v1/chat/completions", "/v1/completions", "/v1/other", None, []):
        found({"custom_id": "a", "url": url, "body": body}).too_long({"default": 1})


def take(lines: list[bytes]) -> None:
    first = FirstLines("in.csv")
    for number, data in enumerate(lines, 3):  # the lines before it are blank
        try:
            parse(data)
        except LineFault as fault:
            first.take(number, data, fault)
        else:
            first.take(number, data, None)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"id,question,answer\n", "line 3 is 'id,question,answer', and the 19 lines after it"),
        (b"[\n", "line 3 is '['"),
        (b"\x89PNG\r\n", "line 3 is not UTF-8 text (it begins with the bytes 89 50 4e 47)"),
        (b"x" * 90, f"line 3 is '{'x' * 40}' …"),
    ],
)
def test_a_file_of_another_format_is_refused(line: bytes, told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        take([line] * FIRST_LINES)
    assert f"this is no JSONL: {told}" in str(caught.value)


def test_a_file_with_a_line_of_json_is_not_refused() -> None:
    bad = [b"{bad"] * (FIRST_LINES - 1)
    for lines in (bad, [*bad, b"{}", *bad], [b"{}", *bad, *bad]):
        take(lines)
    first = FirstLines("in")
    for _ in range(2 * FIRST_LINES):
        first.take(1, b"{}", invalid("custom_id", 5, "x"))
