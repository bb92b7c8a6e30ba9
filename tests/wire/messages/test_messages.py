"""What a request may say, and what makes two requests the same."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.client.streaming.events import TokenEvent
from millstream.errors import ProtocolError
from millstream.wire.messages.choices import Choice, ChoiceDelta, Delta, TokenLogprob
from millstream.wire.messages.codec import decode, encode, pack
from millstream.wire.messages.job_messages import ChatMessage, Request, Result
from millstream.wire.messages.sampling import SamplingParams


@pytest.mark.parametrize(
    "told",
    [
        {"token_ids": [-1]},
        {"token_ids": [2**31]},
        {"index": 1e30},
        {"logprobs": [{"token_id": "9" * 30, "token": "", "logprob": 0.0}]},
    ],
)
def test_numbers_that_nobody_could_send_on(told: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match=r"Delta\.choices\[0\]"):
        decode(Delta, pack({"choices": [told]}))


def test_an_unreadable_message_names_its_field_and_hides_text() -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(Request, pack({"prompt": "a secret", "token_ids": [1]}))
    assert str(caught.value) == (
        "Request.token_ids: give exactly one of prompt, messages and token_ids, not prompt and token_ids"
    )


def test_printed_results_hide_token_ids_and_logprobs() -> None:
    logprob = TokenLogprob(token_id=977, token="w977", logprob=-1.5)
    fields: dict[str, Any] = {"token_ids": (977,), "logprobs": (logprob,), "text": "Hi"}
    result = Result(choices=(Choice(**fields), Choice(index=1)))
    event = TokenEvent("1-1", 1, (ChoiceDelta(**fields),))
    for shown in (repr(result), repr(event), str(Delta(choices=event.choices))):
        assert "977" not in shown
        assert "'Hi'" in shown
    assert (result.text, Result().text) == ("Hi", "")


def test_a_full_request_comes_back() -> None:
    request = Request(
        messages=(ChatMessage(role="system", content=""), ChatMessage(role="user", content="Hé 🌾")),
        sampling=SamplingParams(
            max_tokens=5, temperature=0, seed=-(2**63), stop=("\n",), logit_bias={7: -100.0, 8: 1.5}, n=2,
            logprobs=True, top_logprobs=20, stop_token_ids=(2**31 - 1,),
        ),
        deadline_ms=2**52, tenant="t", metadata={"k": "v"}, stream=True, traceparent="00-a-b-01",
        chat_template_kwargs={"enable_thinking": False, "style": ["short", None]},
    )  # fmt: skip
    again = decode(Request, encode(request))
    assert again == request
    assert again.digest() == request.digest()


def test_the_longest_prompt_fits_into_a_message() -> None:
    request = Request(prompt="🌾" * (4 * 1024 * 1024 - 64))
    assert decode(Request, encode(request)) == request


def test_what_makes_two_requests_the_same() -> None:
    asked = Request(prompt="a", sampling=SamplingParams(temperature=0, max_tokens=5))
    same = Request(
        prompt="a", sampling=SamplingParams(max_tokens=5, temperature=0.0), deadline_ms=1, tenant="t",
        metadata={"k": "v"}, stream=True, traceparent="00",
    )  # fmt: skip
    assert same.digest() == asked.digest()


@pytest.mark.parametrize(
    "other",
    [
        Request(prompt="b"),
        Request(token_ids=(1,)),
        Request(messages=(ChatMessage(role="user", content="a"),)),
        Request(messages=(ChatMessage(role="usera", content=""),)),
        Request(prompt="a", sampling=SamplingParams(temperature=0)),
        Request(prompt="a", sampling=SamplingParams(seed=0)),
        Request(prompt='a","messages":null'),
    ],
)
def test_what_makes_two_requests_differ(other: Request) -> None:
    assert other.digest() != Request(prompt="a").digest()
