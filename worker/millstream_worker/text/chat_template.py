"""A model's chat template: messages and tools to the text of a prompt."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from millstream.errors import InvalidRequest
from millstream.wire.messages.job_messages import Request
from millstream_worker.text.continued_turn import cut_behind, marked
from millstream_worker.text.template.call_probe import Turn
from millstream_worker.text.template.message_turns import IMAGE, turns_of
from millstream_worker.text.template.render_budget import TemplateTooMuch, size_of
from millstream_worker.text.template.template_environment import TemplateEnvironment
from millstream_worker.text.template.template_probes import QUESTION, TemplateProbes

# Errors of a template on messages it was not written for: its own, or Python's.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError
)  # fmt: skip
_MOST_CHARACTERS = 2**20  # of a template; those that are around have up to 50,000


class ChatTemplate:
    """`tokenizer`: one of transformers'. `known`: what the template knows."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._environment = TemplateEnvironment()
        self.known = TemplateProbes(self._try)

    @property
    def exists(self) -> bool:
        return bool(self._tokenizer.chat_template)

    def check(self) -> None:
        """Renders short conversations. Raises TemplateTooMuch if even these take too much."""
        if self.exists:
            self._try([QUESTION])
            _ = self.known.call_form, self.known.call_id("probe")

    def render(self, request: Request, *, thinks: bool = False) -> str:
        """The text of the request's messages and tools, up to the answer. `thinks`: the model has tokens for
        thoughts. Raises InvalidRequest.
        """
        messages = request.messages or ()
        if not self.exists:
            raise InvalidRequest(
                "messages",
                [message.role for message in messages],
                "this model has no chat template; send a prompt (millstream submit --raw, "
                "/v1/completions), or serve a chat model",
            )
        variables = self._variables(request, thinks)
        if request.continue_final_message:
            messages = (*messages[:-1], marked(messages[-1]))
        turns, tools = turns_of(messages, request.tools or (), self.known)
        text = self._checked_text(turns, tools, variables, request.add_generation_prompt)
        return cut_behind(text) if request.continue_final_message else text

    def with_two_images(self) -> str:
        """The text of a short conversation with two images; empty if the template takes none."""
        parts = [IMAGE, {"type": "text", "text": "probe_word"}, IMAGE]
        return self._try([{"role": "user", "content": parts}]) if self.exists else ""

    def _variables(self, request: Request, thinks: bool) -> dict[str, Any]:
        """Its chat_template_kwargs, and the effort in the template's own words."""
        given = dict(request.chat_template_kwargs or {})
        if (effort := request.reasoning_effort) is None:
            return given
        for name, value in self.known.effort(effort, thinks=thinks).items():
            if (own := given.setdefault(name, value)) != value:
                problem = (
                    f"asks for {name} {value!r}, and chat_template_kwargs.{name} is {own!r}; leave one out"
                )
                raise InvalidRequest("reasoning_effort", effort, problem)
        return given

    def _checked_text(
        self, turns: Sequence[Turn], tools: Sequence[Turn], variables: Mapping[str, Any], begins_answer: bool
    ) -> str:
        """Raises InvalidRequest."""
        try:
            return self._text(turns, tools, variables, begins_answer)
        except TemplateTooMuch as error:
            raise InvalidRequest(
                "messages",
                [turn["role"] for turn in turns],
                f"the model's chat template {error}; send fewer or shorter messages or a prompt, or have the "
                "operator correct the checkpoint's template",
            ) from error
        except _TEMPLATE_ERRORS as error:
            raise InvalidRequest(
                "messages",
                [turn["role"] for turn in turns],
                f"the model's chat template refuses these messages: {error}; change their roles or order, or "
                "the chat_template_kwargs",
            ) from error

    def _text(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Turn],
        variables: Mapping[str, Any],
        begins_answer: bool = True,
    ) -> str:
        """As transformers' `apply_chat_template`, within a budget."""
        shown = list(tools) or None
        source = self._tokenizer.get_chat_template(None, shown)
        if len(source) > _MOST_CHARACTERS:
            raise TemplateTooMuch(f"has {len(source)} characters itself, more than {_MOST_CHARACTERS}")
        given = {
            **self._tokenizer.special_tokens_map,
            **variables,
            "messages": list(turns),
            "tools": shown,
            "documents": None,
            "add_generation_prompt": begins_answer,
        }
        size = size_of((turns, shown, variables), sys.maxsize)
        text = self._environment.render(source, given, size)
        text.encode()  # arguments in JSON may have written half of a surrogate pair, which no tokenizer takes
        return text

    def _try(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Turn] = (),
        variables: Mapping[str, Any] | None = None,
        *,
        begins: bool = True,
    ) -> str:
        """The rendered text; empty if the template raises an error."""
        try:
            return self._text(turns, tools, variables or {}, begins)
        except _TEMPLATE_ERRORS:
            return ""
