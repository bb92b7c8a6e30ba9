"""What is encoded by hand is, byte for byte, what the protocol's models encode to."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millstream.wire.messages import codec
from millstream.wire.messages.choices import Choice, ChoiceDelta, Delta, TokenLogprob, TopLogprob
from millstream.wire.messages.messages import ErrorInfo, Result, State, Timing, Usage
from millstream.wire.messages.tools import FunctionCall, ToolCall
from millstream_worker.jobs import encoding

ids = st.lists(st.integers(0, 2**31 - 1), max_size=5)
reasons = st.sampled_from([None, "stop", "length", "tool_calls"])
numbers = st.floats(allow_nan=False, allow_infinity=False)
tops = st.builds(TopLogprob, token_id=st.integers(0, 9), token=st.text(max_size=3), logprob=numbers)
logprobs = st.none() | st.lists(
    st.builds(
        TokenLogprob,
        token_id=st.integers(0, 9),
        token=st.text(max_size=3),
        logprob=numbers,
        top=st.lists(tops, max_size=2).map(tuple),
    ),
    max_size=2,
).map(tuple)
calls = st.lists(
    st.builds(
        ToolCall,
        id=st.text(max_size=3),
        function=st.builds(FunctionCall, name=st.just("get"), arguments=st.just("{}")),
    ),
    max_size=2,
).map(tuple)
fits = st.sampled_from([None, True, False])
parts = st.builds(
    ChoiceDelta,
    index=st.integers(0, 3),
    token_ids=ids.map(tuple),
    text=st.text(max_size=5),
    logprobs=logprobs,
    reasoning_content=st.text(max_size=2),
    finish_reason=reasons,
    complete=fits,
    tool_calls=calls,
)
choices = st.builds(
    Choice,
    index=st.integers(0, 3),
    text=st.text(max_size=5),
    token_ids=ids.map(tuple),
    finish_reason=reasons,
    logprobs=logprobs,
    reasoning_content=st.text(max_size=2),
    complete=fits,
    tool_calls=calls,
)
counts = st.integers(0, 9)
times = st.none() | st.integers(1, 2**45)


def plain_logprobs(given_: tuple[TokenLogprob, ...] | None) -> list[dict[str, Any]] | None:
    if given_ is None:
        return None
    return [
        encoding.token_logprob(
            one.token_id,
            one.token,
            one.logprob,
            [encoding.top_logprob(top.token_id, top.token, top.logprob) for top in one.top],
        )
        for one in given_
    ]


def plain_calls(given_: tuple[ToolCall, ...]) -> list[encoding.Plain]:
    return [encoding.tool_call(one.id, one.function.name, one.function.arguments) for one in given_]


@given(st.lists(parts, max_size=3))
def test_deltas(told: list[ChoiceDelta]) -> None:
    by_hand = encoding.delta(
        [
            encoding.choice_delta(
                part.index,
                list(part.token_ids),
                part.text,
                plain_logprobs(part.logprobs),
                part.finish_reason,
                part.complete,
                part.reasoning_content,
                plain_calls(part.tool_calls),
            )
            for part in told
        ]
    )
    assert by_hand == codec.encode(Delta(choices=tuple(told)))


results = st.builds(
    Result,
    state=st.sampled_from(State),
    choices=st.lists(choices, max_size=2).map(tuple),
    usage=st.builds(Usage, **dict.fromkeys(Usage.model_fields, counts)),
    error=st.none()
    | st.builds(
        ErrorInfo, code=st.text(max_size=3), message=st.text(max_size=3), field=st.sampled_from([None, "n"])
    ),
    timing=st.builds(
        Timing,
        submitted_ms=st.integers(0, 2**45),
        started_ms=times,
        admitted_ms=times,
        first_token_ms=times,
        last_token_ms=times,
    ),
    model=st.sampled_from(["", "model"]),
    attempts=st.integers(1, 3),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    metadata=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    version=st.sampled_from([1, 2]),
)


@given(results)
def test_results(result: Result) -> None:
    apart = {"choices", "usage"}
    fields = {name: getattr(result, name) for name in Result.model_fields if name not in apart}
    told = [
        encoding.choice(
            one.index,
            one.text,
            list(one.token_ids),
            one.finish_reason,
            plain_logprobs(one.logprobs),
            one.complete,
            one.reasoning_content,
            plain_calls(one.tool_calls),
        )
        for one in result.choices
    ]
    plain = encoding.usage(**result.usage.model_dump())
    assert encoding.result(choices=told, usage=plain, **fields) == codec.encode(result)
