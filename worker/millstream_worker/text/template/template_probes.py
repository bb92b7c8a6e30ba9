"""Finds out what a chat template knows, by rendering short conversations: forms of contents, tools and their
calls, and how much to think.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from millstream.errors import InvalidRequest
from millstream.wire.messages.job_messages import ReasoningEffort
from millstream.wire.messages.tools import CALL_BEGIN, CALL_END

Turn = dict[str, Any]
Rendering = Callable[[Sequence[Turn], Sequence[Turn], Mapping[str, Any]], str]

QUESTION: Turn = {"role": "user", "content": "probe_question"}
_ANSWER: Turn = {"role": "assistant", "content": "probe_answer"}
_TOOL = {"name": "probe_tool", "description": "", "parameters": {"type": "object", "properties": {}}}
_SHOWN = {"type": "function", "function": _TOOL}
_CALL = {"id": "call00001", "type": "function", "function": {"name": "probe_call", "arguments": {"a": 7301}}}
_OUTCOME = {"role": "tool", "name": "probe_call", "tool_call_id": "call00001", "content": "probe_outcome"}
_OWN_FORM = re.compile(rf'{CALL_BEGIN}\s*{{"name": "probe_call", "arguments": {{"a": 7301}}}}\s*{CALL_END}')
_OF_CALLS = ("probe_tool", "probe_call", "7301", "probe_outcome")
_EMPTY: tuple[Turn, ...] = ({}, {"content": ""}, {"content": None}, {"content": []})
_SWITCHES = ("enable_thinking", "thinking")  # variables that are true or false


class TemplateProbes:
    """`render` returns the text of turns, tools and variables; empty if the template raises an error."""

    def __init__(self, render: Rendering) -> None:
        self._render = render

    @property
    def knows_tools(self) -> bool:
        return _shows_calls(self._calling[1])

    @property
    def writes_calls(self) -> bool:
        """It shows calls in the form that the grammar of tools has: so its model writes them by itself."""
        return self.knows_tools and bool(_OWN_FORM.search(self._calling[1]))

    @property
    def empty_content(self) -> Turn:
        """Returns the content of a turn that only calls: absent, or the first kind of none that it takes."""
        return self._calling[0]

    @cached_property
    def takes_outcomes(self) -> bool:
        return self.knows_tools or "probe_outcome" in self._shown(QUESTION, _ANSWER, _OUTCOME)

    @cached_property
    def takes_system(self) -> bool:
        return "probe_system" in self._shown({"role": "system", "content": "probe_system"}, QUESTION)

    def around_answer(self) -> tuple[str, str, str]:
        """Returns the text up to an answer that is asked for; up to an answer's text in a conversation that
        goes on; and behind that.
        """
        before, found, behind = self._shown(QUESTION, _ANSWER, QUESTION).partition(_ANSWER["content"])
        return self._shown(QUESTION), before if found else "", behind

    def in_form(self, turn: Turn) -> Turn:
        """The turn with its text as a list of one part, where the template shows it only so."""
        role = turn["role"] if turn["role"] in ("system", "assistant") else "user"
        return _in_parts(turn) if role in self._roles_in_parts else turn

    def effort(self, asked: ReasoningEffort, *, thinks: bool) -> dict[str, Any]:
        """The variables that tell the template how much to think. `thinks`: the model has tokens for it.
        Raises InvalidRequest.
        """
        is_none = asked is ReasoningEffort.NONE
        told: dict[str, Any] = {} if self._switch is None else {self._switch: not is_none}
        if asked in self._efforts:
            told["reasoning_effort"] = asked.value
        elif self._efforts and not (is_none and told):
            known = ", ".join(self._efforts)
            raise InvalidRequest(
                "reasoning_effort", asked, f"this model's chat template takes {known}; choose one"
            )
        elif not told and (thinks or not is_none):
            problem = "this model's chat template knows neither it nor enable_thinking; leave it out"
            raise InvalidRequest("reasoning_effort", asked, problem)
        return told

    @cached_property
    def _calling(self) -> tuple[Turn, str]:
        """The content of a turn that only calls, and a conversation with one."""
        tried: list[tuple[Turn, str]] = []
        for empty in _EMPTY:
            calling = {"role": "assistant", **empty, "tool_calls": [_CALL]}
            turns = [self.in_form(QUESTION), calling, self.in_form(_OUTCOME)]
            tried.append((empty, self._render(turns, [_SHOWN], {})))
            if _shows_calls(tried[-1][1]):
                return tried[-1]
        return tried[0]

    @cached_property
    def _roles_in_parts(self) -> frozenset[str]:
        asks = _in_parts(QUESTION) if self._only_in_parts(QUESTION) else QUESTION
        said = {role: {"role": role, "content": "probe_word"} for role in ("system", "assistant")}
        found = {"user": asks is not QUESTION}
        found["system"] = self._only_in_parts(said["system"], after=[asks])
        found["assistant"] = self._only_in_parts(said["assistant"], before=[asks])
        return frozenset(role for role, in_parts in found.items() if in_parts)

    def _only_in_parts(self, turn: Turn, before: Sequence[Turn] = (), after: Sequence[Turn] = ()) -> bool:
        as_text, in_parts = (self._render([*before, one, *after], (), {}) for one in (turn, _in_parts(turn)))
        return turn["content"] not in as_text and turn["content"] in in_parts

    @cached_property
    def _efforts(self) -> tuple[ReasoningEffort, ...]:
        """The efforts that it takes; none where they make no difference. One that it passes over, as it does
        a word without meaning, is not taken, but for "medium": that may be its default.
        """
        plain, odd = self._shown(QUESTION), self._shown(QUESTION, reasoning_effort="probe_effort")
        texts = {one: self._shown(QUESTION, reasoning_effort=one.value) for one in ReasoningEffort}
        if all(text == plain for text in texts.values()):
            return ()
        passed_over = plain if plain == odd else None
        return tuple(
            one
            for one, text in texts.items()
            if text and (text != passed_over or one is ReasoningEffort.MEDIUM)
        )

    @cached_property
    def _switch(self) -> str | None:
        """The variable that has it think or not."""
        for name in _SWITCHES:
            on, off = (self._shown(QUESTION, **{name: value}) for value in (True, False))
            if on and off and on != off:
                return name
        return None

    def _shown(self, *turns: Turn, **variables: object) -> str:
        return self._render([self.in_form(turn) for turn in turns], (), variables)


def _shows_calls(text: str) -> bool:
    return all(part in text for part in _OF_CALLS)


def _in_parts(turn: Turn) -> Turn:
    if not isinstance(text := turn.get("content"), str):
        return turn
    return turn | {"content": [{"type": "text", "text": text}]}
