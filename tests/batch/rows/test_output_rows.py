"""Rows of the output and error files, against the shapes of the OpenAI API."""

from __future__ import annotations

from dataclasses import replace

from support.wire.image_files import data_url, png

from millstream.batch.row_loader import RowLoader
from millstream.batch.rows.batch_lines import BatchLine, read_row
from millstream.batch.rows.faults import LineFault
from millstream.batch.rows.output_rows import (
    answer_row,
    failure_row,
    fault_row,
    incomplete_row,
    is_incomplete,
    refusal_row,
    reused_row,
)
from millstream.errors import Conflict, InvalidRequest, JobCancelled, JobExpired, JobFailed, NotFound
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.openai.api_error import api_error
from millstream.wire.keys import Lane
from millstream.wire.messages.choices import Choice, TokenLogprob, TopLogprob
from millstream.wire.messages.job_messages import ErrorInfo, Request, Result, State, Timing, Usage
from millstream.wire.messages.tools import FunctionCall, ToolCall

ROW = BatchLine(7, "doc-1", ApiEndpoint.COMPLETIONS, "default", "d1", (Request(prompt="x"),))
CHAT = BatchLine(7, "doc-1", ApiEndpoint.CHAT, "default", "d1", (Request(prompt="x"),))
LOGPROBS = (
    TokenLogprob(token_id=5, token="é", logprob=-0.5, top=(TopLogprob(token_id=5, token="é", logprob=-0.5),)),
    TokenLogprob(token_id=6, token="\ufffd", logprob=-1.0),
)
RESULT = Result(
    choices=(Choice(index=0, text="é!", token_ids=(5, 6), finish_reason="stop", logprobs=LOGPROBS),),
    usage=Usage(prompt_tokens=10, cached_tokens=8, output_tokens=2),
    timing=Timing(submitted_ms=1_000, finished_ms=1_700_000_000_123), model="small", weights="int8",
    kv_format="int8", sampling={"temperature": 0.6}, metadata={"page": "3"},
)  # fmt: skip


def test_the_sampled_token_is_among_the_likeliest() -> None:
    """With `logprobs: 0` it stands there alone."""
    other = TopLogprob(token_id=7, token="b", logprob=-0.1)
    drawn = [TokenLogprob(token_id=5, token="a", logprob=-2.0, top=top) for top in ((other,), ())]
    result = RESULT.model_copy(update={"choices": (Choice(text="aa", logprobs=tuple(drawn)),)})
    body = answer_row(ROW, "0-abc", result)["response"]["body"]
    assert body["choices"][0]["logprobs"]["top_logprobs"] == [{"b": -0.1, "a": -2.0}, {"a": -2.0}]


def test_a_completion() -> None:
    assert answer_row(ROW, "0-abc", RESULT) == {
        "id": "batch_req_d1",
        "custom_id": "doc-1",
        "error": None,
        "response": {
            "status_code": 200,
            "request_id": "0-abc",
            "body": {
                "id": "cmpl-0-abc",
                "object": "text_completion",
                "created": 1_700_000_000,
                "model": "small",
                "choices": [
                    {
                        "text": "é!",
                        "index": 0,
                        "finish_reason": "stop",
                        "logprobs": {
                            "tokens": ["é", "\ufffd"],
                            "token_logprobs": [-0.5, -1.0],
                            "top_logprobs": [{"é": -0.5}, {"\ufffd": -1.0}],
                            "text_offset": [0, 1],
                        },
                    }
                ],
                "usage": {
                    "prompt_tokens": 10,
                    "completion_tokens": 2,
                    "total_tokens": 12,
                    "prompt_tokens_details": {"cached_tokens": 8},
                },
                "metadata": {"page": "3"},
                "weights": "int8",
                "kv_format": "int8",
                "sampling": {"temperature": 0.6},
            },
        },
    }


def test_draft_tokens_are_those_of_predictions() -> None:
    drafted = RESULT.model_copy(update={"usage": Usage(draft_tokens=9, accepted_draft_tokens=7)})
    usage = answer_row(CHAT, "0-abc", drafted)["response"]["body"]["usage"]
    found = usage["completion_tokens_details"]
    assert found == {"accepted_prediction_tokens": 7, "rejected_prediction_tokens": 2}


def test_a_chat_completion() -> None:
    body = answer_row(CHAT, "0-abc", RESULT)["response"]["body"]
    assert body["id"] == "chatcmpl-0-abc"
    assert body["object"] == "chat.completion"
    [choice] = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "é!", "refusal": None}
    first, second = choice["logprobs"]["content"]
    assert first["bytes"] == [0xC3, 0xA9]
    assert first["top_logprobs"] == [{"token": "é", "logprob": -0.5, "bytes": [0xC3, 0xA9]}]
    assert second["bytes"] is None


def test_a_failed_job_names_the_field_of_the_line() -> None:
    """In the words of the POST."""
    message = "sampling.max_tokens: too many (got 9)"
    error = ErrorInfo(code="context_length_exceeded", message=message, field="sampling.max_tokens")
    end = JobFailed("0-abc", error.code, message, Result(state=State.FAILED, error=error))
    row = failure_row(ROW, "0-abc", end)
    said = {"code": "context_length_exceeded", "message": "max_tokens: too many (got 9)"}
    assert row["error"] == said | {"param": "body.max_tokens", "line": 7}
    assert row["response"] == {"status_code": 400, "request_id": "0-abc", "body": api_error(end).body()}
    inner = row["response"]["body"]["error"]
    assert inner == said | {"param": "max_tokens", "type": "invalid_request_error"}


def test_a_failed_job_names_the_part_that_the_line_has() -> None:
    part = "messages[0].parts[0]"
    content = [{"type": "text", "text": ""}, {"type": "image_url", "image_url": {"url": data_url(png())}}]
    body = {"messages": [{"role": "user", "content": content}]}
    line = {"custom_id": "a", "url": "/v1/chat/completions", "body": body}
    row = RowLoader.with_light(replace(read_row(1, "a", line, lane=Lane.BATCH, tenant=""), size=10**6), 0)
    assert row.light is not None
    error = ErrorInfo(code="bad_request", message=f"{part}: is cut", field=part)
    end = JobFailed("0-a", error.code, error.message, Result(state=State.FAILED, error=error))
    told = failure_row(row.light, "0-a", end)
    where = "messages[0].content[1]"
    assert (told["error"]["param"], told["error"]["message"]) == (f"body.{where}", f"{where}: is cut")
    assert told["response"]["body"]["error"]["param"] == where


def test_other_ends_without_an_answer() -> None:
    ends = [JobFailed("j", "engine_lost", "x"), JobCancelled("j"), JobExpired("j"), NotFound("j")]
    rows = [failure_row(ROW, "j", end) for end in ends]
    found = [(row["error"]["code"], row["response"]["status_code"]) for row in rows]
    assert found == [("engine_lost", 500), ("cancelled", 409), ("expired", 408), ("not_found", 404)]


def test_lines_that_were_never_submitted_have_no_response() -> None:
    row = fault_row(3, LineFault("invalid_field", "body.n: bad", "body.n", "doc-3"))
    assert row == {
        "id": "batch_req_line_3",
        "custom_id": "doc-3",
        "response": None,
        "error": {"code": "invalid_field", "message": "line 3: body.n: bad", "param": "body.n", "line": 3},
    }
    refused = refusal_row(ROW, InvalidRequest("prompt", "x", "too large"))
    assert refused["response"] is None
    assert refused["error"]["param"] == "body.prompt"
    assert refusal_row(ROW, Conflict("0-abc"))["error"]["code"] == "conflict"


def test_a_truncated_answer_is_an_error_row_with_all_choices() -> None:
    whole = Choice(index=0, text="{}", finish_reason="stop", complete=True)
    cut = Choice(index=1, text="{", finish_reason="length", complete=False)
    result = RESULT.model_copy(update={"choices": (whole, cut)})
    assert is_incomplete(result)
    assert not is_incomplete(RESULT)
    assert not is_incomplete(RESULT.model_copy(update={"choices": (whole,)}))
    for line, texts in ((ROW, ["{}", "{"]), (CHAT, [{"content": "{}"}, {"content": "{"}])):
        row = incomplete_row(line, "0-abc", result)
        found = (row["error"]["code"], row["error"]["param"], row["error"]["line"])
        assert found == ("incomplete_output", None, 7)
        assert "--retry-incomplete" in row["error"]["message"]
        assert (row["id"], row["response"]["status_code"]) == ("batch_req_d1", 200)
        choices = row["response"]["body"]["choices"]
        found = [(one["complete"], one["finish_reason"]) for one in choices]
        assert found == [(True, "stop"), (False, "length")]
        shown = [one.get("text") or {"content": one["message"]["content"]} for one in choices]
        assert shown == texts


def test_calls_and_thoughts_are_parts_of_a_message() -> None:
    call = ToolCall(id="call_1", function=FunctionCall(name="get", arguments='{"a":1}'))
    text = '<tool_call>\n{"name": "get", "arguments": {"a":1}}\n</tool_call>'
    told = Choice(
        text=text, finish_reason="tool_calls", complete=True, tool_calls=(call,), reasoning_content="Hm"
    )
    row = answer_row(CHAT, "0-abc", Result(choices=(told, Choice(index=1, text="Hi", finish_reason="stop"))))
    [called, plain] = row["response"]["body"]["choices"]
    assert (called["finish_reason"], called["complete"]) == ("tool_calls", True)
    assert called["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "reasoning_content": "Hm",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "get", "arguments": '{"a":1}'}}
        ],
    }
    assert plain["message"] == {"role": "assistant", "content": "Hi", "refusal": None}


def test_a_row_names_the_fields_without_effect() -> None:
    told = replace(CHAT, ignored=("user", "tempo"))
    row = answer_row(told, "0-abc", RESULT)
    assert row["response"]["ignored"] == ["user", "tempo"]
    assert "ignored" not in answer_row(CHAT, "0-abc", RESULT)["response"]
    assert "ignored" not in reused_row(CHAT, row)["response"]
    assert reused_row(told, answer_row(CHAT, "0-abc", RESULT))["response"]["ignored"] == ["user", "tempo"]
