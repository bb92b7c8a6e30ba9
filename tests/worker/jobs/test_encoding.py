"""What is encoded by hand is, byte for byte, what the protocol's models encode to."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millstream.wire.messages import codec
from millstream.wire.messages.choices import Choice, ChoiceDelta, Delta, TokenLogprob, TopLogprob
from millstream.wire.messages.job_messages import ErrorInfo, Result, State, Timing, Usage
from millstream.wire.messages.tools import FunctionCall, ToolCall
from millstream_worker.jobs import encoding


def tuples(of: st.SearchStrategy[Any], most: int = 2) -> st.SearchStrategy[Any]:
    return st.lists(of, max_size=most).map(tuple)


short = st.text(max_size=3)
numbers = st.floats(allow_nan=False, allow_infinity=False)
TOLD = {
    "token_id": st.integers(0, 9),
    "token": short,
    "logprob": numbers,
    "bytes": st.none() | tuples(st.integers(0, 255)),
}
tops = st.builds(TopLogprob, **TOLD)
logprobs = st.builds(TokenLogprob, **TOLD, top=tuples(tops))
functions = st.builds(FunctionCall, name=st.just("get"), arguments=st.just("{}"))
PART = {
    "index": st.integers(0, 3), "token_ids": tuples(st.integers(0, 2**31 - 1), 5),
    "text": st.text(max_size=5), "logprobs": st.none() | tuples(logprobs), "reasoning_content": short,
    "finish_reason": st.sampled_from([None, "stop", "length", "tool_calls"]),
    "complete": st.sampled_from([None, True, False]),
    "tool_calls": tuples(st.builds(ToolCall, id=short, function=functions)),
}  # fmt: skip
times = st.none() | st.integers(1, 2**45)
results = st.builds(
    Result,
    state=st.sampled_from(State),
    choices=tuples(st.builds(Choice, **PART)),
    usage=st.builds(Usage, **dict.fromkeys(Usage.model_fields, st.integers(0, 9))),
    error=st.none() | st.builds(ErrorInfo, code=short, message=short, field=st.sampled_from([None, "n"])),
    timing=st.builds(
        Timing,
        submitted_ms=st.integers(0, 2**45),
        **dict.fromkeys(("started_ms", "admitted_ms", "first_token_ms", "last_token_ms"), times),
    ),
    model=st.sampled_from(["", "model"]),
    weights=st.sampled_from([None, "int8"]),
    kv_format=st.sampled_from([None, "int8"]),
    model_digest=st.sampled_from([None, "0123abcd"]),
    attempts=st.integers(1, 3),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    metadata=st.dictionaries(short, short, max_size=2),
    sampling=st.none() | st.dictionaries(short, numbers, min_size=1, max_size=2),
    prompt_token_ids=st.none() | tuples(st.integers(0, 2**31 - 1), 5),
    version=st.sampled_from([1, 2]),
)


def plain_logprob(one: TokenLogprob) -> bytes:
    told, *tops = [
        encoding.top_logprob(each.token_id, each.token, each.logprob, each.bytes) for each in (one, *one.top)
    ]
    return encoding.token_logprob(told, tops)


def plain(part: ChoiceDelta | Choice) -> dict[str, Any]:
    """The arguments of both encoders."""
    found = None if part.logprobs is None else [plain_logprob(one) for one in part.logprobs]
    calls = [encoding.tool_call(one.id, one.function.name, one.function.arguments) for one in part.tool_calls]
    given = {name: getattr(part, name) for name in PART}
    return given | {"token_ids": list(part.token_ids), "logprobs": found, "tool_calls": calls}


@given(st.lists(st.builds(ChoiceDelta, **PART), max_size=3))
def test_deltas(told: list[ChoiceDelta]) -> None:
    by_hand = encoding.delta([encoding.part(ChoiceDelta, **plain(part)) for part in told])
    assert by_hand == codec.encode(Delta(choices=tuple(told)))


@given(results)
def test_results(result: Result) -> None:
    fields = {name: getattr(result, name) for name in Result.model_fields} | {
        "choices": [encoding.part(Choice, **plain(one)) for one in result.choices],
        "usage": encoding.part(Usage, **result.usage.model_dump()),
    }
    assert encoding.result(**fields) == codec.encode(result)
