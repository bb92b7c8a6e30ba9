"""A request's sampling parameters, with the field's names and OpenAI's meaning if OpenAI has them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints, model_validator

from millstream.wire.messages.codec import Message
from millstream.wire.messages.validation_errors import WrongField
from millstream.wire.versions import ADDED

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 1024
MAX_TOP_LOGPROBS = 20
MAX_CHOICES = 128
_EARLIER_STOPS, _EARLIER_CHARACTERS, _EARLIER_CHOICES = 16, 256, 16  # the bounds before version 5
_WIDER = "wider_bounds"
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 256
MAX_ALLOWED_TOKENS = 2**18  # every token of the largest vocabularies
# Fields whose defaults a model may have of its own: here are those of a model without any.
DEFAULTED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

StopString = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARACTERS)]
_LATER = {name.removeprefix("sampling.") for name in ADDED if name.startswith("sampling.")} - {_WIDER}
BadWord = Annotated[str, StringConstraints(min_length=1, max_length=256)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class SamplingParams(Message):
    """How tokens are sampled and when a choice ends. What is not set may have a default of the model.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 are off. `max_tokens` None: up to the
    model's context length. `seed` None: one is sampled at the first start, from 0 to 2^53 - 1, kept for later
    attempts and reported in the result.

    `bad_words`: texts whose tokens are barred; with `allowed_token_ids` an answer has no other tokens. With
    `include_stop_str_in_output` a text ends behind its stop string; without `skip_special_tokens` special
    tokens are text. `truncate_prompt_tokens`: only so many of the prompt's last tokens are used.
    `thinking_token_budget`: a thought ends after so many tokens.
    """

    max_tokens: Annotated[int, Field(ge=1, le=2**24)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=2**24)] = 0
    temperature: Annotated[float, Field(ge=0, le=10)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Annotated[tuple[StopString, ...], Field(max_length=MAX_STOP_STRINGS)] = ()
    stop_token_ids: Annotated[tuple[TokenId, ...], Field(max_length=256)] = ()
    ignore_eos: bool = False
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] = 1.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    logit_bias: Annotated[
        dict[TokenId, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MAX_LOGIT_BIAS)
    ] = Field(default_factory=dict)
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] = 0
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    bad_words: Annotated[tuple[BadWord, ...], Field(max_length=MAX_BAD_WORDS)] = ()
    allowed_token_ids: (
        Annotated[tuple[TokenId, ...], Field(min_length=1, max_length=MAX_ALLOWED_TOKENS)] | None
    ) = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=1, le=2**24)] | None = None
    thinking_token_budget: Annotated[int, Field(ge=0, le=2**24)] | None = None

    @model_validator(mode="after")
    def _together(self) -> SamplingParams:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            problem = f"is above max_tokens {self.max_tokens}; lower it"
            raise WrongField("min_tokens", self.min_tokens, problem)
        if self.top_logprobs and not self.logprobs:
            raise WrongField(
                "top_logprobs", self.top_logprobs, "needs logprobs: true; set it, or leave top_logprobs out"
            )
        return self

    def said(self) -> dict[str, Any]:
        """The fields that were set, of those for which models have defaults."""
        return {name: getattr(self, name) for name in DEFAULTED if name in self.model_fields_set}

    def later_fields(self) -> list[str]:
        """The names of its fields that the first version of messages does not have, and that are set; and one
        for values that it does not take.
        """
        fields = type(self).model_fields
        names = [name for name in _LATER if getattr(self, name) != fields[name].default]
        return [*names, _WIDER] if self._has_wider_bounds else names

    @property
    def _has_wider_bounds(self) -> bool:
        longest = max(map(len, self.stop), default=0)
        more = self.n > _EARLIER_CHOICES or len(self.stop) > _EARLIER_STOPS
        return more or longest > _EARLIER_CHARACTERS
