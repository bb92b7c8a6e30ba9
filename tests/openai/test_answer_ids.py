"""Token ids stand where vLLM has them, if they were asked for."""

from __future__ import annotations

from millstream import Choice, Result
from millstream.openai.answer_body import answer_body
from millstream.openai.api_endpoint import ApiEndpoint

CHOICES = (Choice(text="a", token_ids=(7, 8)), Choice(index=1, text="b", token_ids=(9,)))


def test_a_chat_has_the_ids_of_its_prompt_once() -> None:
    body = answer_body(ApiEndpoint.CHAT, "j", Result(choices=CHOICES, prompt_token_ids=(1, 2)))
    assert body["prompt_token_ids"] == [1, 2]
    assert [choice["token_ids"] for choice in body["choices"]] == [[7, 8], [9]]


def test_a_completion_has_the_ids_in_each_choice() -> None:
    body = answer_body(ApiEndpoint.COMPLETIONS, "j", Result(choices=CHOICES, prompt_token_ids=(1, 2)))
    assert "prompt_token_ids" not in body
    told = [(choice["prompt_token_ids"], choice["token_ids"]) for choice in body["choices"]]
    assert told == [([1, 2], [7, 8]), ([1, 2], [9])]


def test_an_answer_has_no_ids_unasked() -> None:
    for endpoint in ApiEndpoint:
        assert "token_ids" not in str(answer_body(endpoint, "j", Result(choices=CHOICES)))
