"""Bytes of tokens in OpenAI's log-probabilities."""

from __future__ import annotations

from millstream.openai.answer_body import chat_logprobs
from millstream.wire.messages.choices import Choice, TokenLogprob, TopLogprob


def test_bytes_of_all_tokens_are_those_of_the_answer() -> None:
    """Of results of older workers, parts of characters have none."""
    euro = [("a", None), ("\ufffd", (0xE2, 0x82)), ("\ufffd", (0xAC,)), ("\ufffd", None), ("<end>", ())]
    told = tuple(
        TokenLogprob(
            token_id=1,
            token=token,
            logprob=-1.0,
            bytes=own,
            top=(TopLogprob(token_id=1, token=token, logprob=-1.0, bytes=own),),
        )
        for token, own in euro
    )
    body = chat_logprobs(Choice(text="a€", logprobs=told))
    assert body is not None
    found = [one["bytes"] for one in body["content"]]
    assert found == [[0x61], [0xE2, 0x82], [0xAC], None, []]
    assert found == [one["top_logprobs"][0]["bytes"] for one in body["content"]]
    assert bytes(byte for one in found for byte in one or ()).decode() == "a€"
