"""Values as clients of other servers write them."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import InvalidRequest
from millstream.openai.fields.value_forms import (
    TOP_TOKEN_ONLY,
    sampling_values,
    turn_values,
    whole,
    whole_numbers,
)
from millstream.wire.messages.job_messages import ReasoningEffort
from millstream.wire.messages.sampling import SamplingParams


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": -1.0}, {"top_k": 0}),
        ({"top_k": 0}, {"top_k": 0}),
        ({"top_p": 0}, {"top_p": TOP_TOKEN_ONLY}),
        ({"top_p": 0.0}, {"top_p": TOP_TOKEN_ONLY}),
        ({"top_p": False}, {"top_p": False}),  # refused by the model
        ({"stop": ""}, {}),
        ({"stop": "x"}, {"stop": "x"}),
        ({"thinking_token_budget": -1}, {}),
        ({"max_tokens": 5.0, "temperature": 5.0}, {"max_tokens": 5, "temperature": 5.0}),
        ({"max_tokens": 5.5, "n": True}, {"max_tokens": 5.5, "n": True}),  # refused by the model
        ({"stop_token_ids": (1.0, 2), "seed": 2.0}, {"stop_token_ids": (1, 2), "seed": 2}),
    ],
)
def test_a_value_is_made_what_the_model_takes(given: dict[str, Any], made: dict[str, Any]) -> None:
    values = sampling_values(given)
    assert values == made
    assert {name: type(value) for name, value in values.items()} == {
        n: type(value) for n, value in made.items()
    }


def test_whole_numbers_are_found_by_their_types() -> None:
    assert whole_numbers(SamplingParams) == {
        "max_tokens", "min_tokens", "top_k", "seed", "stop_token_ids", "top_logprobs", "n",
        "allowed_token_ids", "truncate_prompt_tokens", "thinking_token_budget",
    }  # fmt: skip
    assert [whole(value) for value in (5.0, 5.5, "5", None, [1.0])] == [5, 5.5, "5", None, [1]]
    assert whole(1e300) == int(1e300)


def test_the_context_of_a_model_is_no_length() -> None:
    with pytest.raises(InvalidRequest, match=r"^truncate_prompt_tokens: .*give a number of tokens"):
        sampling_values({"truncate_prompt_tokens": -1})


def test_a_begun_answer_has_no_new_turn() -> None:
    assert turn_values({}) == {}
    assert turn_values({"continue_final_message": False, "other": 1}) == {"continue_final_message": False}
    begun = turn_values({"continue_final_message": True})
    assert begun == {"continue_final_message": True, "add_generation_prompt": False}
    both = {"continue_final_message": True, "add_generation_prompt": True}
    assert turn_values(both) == both  # the request refuses them together
    assert turn_values({"reasoning_effort": "none"}) == {"reasoning_effort": ReasoningEffort.NONE}


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("continue_final_message", "yes", "must be true or false"),
        ("add_generation_prompt", 0, "must be true or false"),
        ("return_token_ids", 1, "must be true or false"),
        ("reasoning_effort", "much", "must be one of none, minimal, low"),
        ("reasoning_effort", ["low"], "must be one of none, minimal, low"),
    ],
)
def test_a_wrong_value_of_a_turn_is_named(name: str, value: Any, problem: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        turn_values({name: value})
    assert (caught.value.field, caught.value.problem[: len(problem)]) == (name, problem)
