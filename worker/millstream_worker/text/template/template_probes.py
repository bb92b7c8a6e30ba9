"""Finds out what a chat template knows, by rendering short conversations: forms of contents, tools and their
calls, and how much to think.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from millstream.errors import InvalidRequest
from millstream.wire.messages.job_messages import ReasoningEffort
from millstream_worker.engine.grammars.calls.call_form import HERMES, CallForm
from millstream_worker.text.template.call_probe import ARGUMENTS, CALLED, PROBE_ID, Turn, call_of, form_of


class Render(Protocol):
    def __call__(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Turn],
        variables: Mapping[str, Any],
        *,
        begins: bool = True,
    ) -> str:
        """Returns the text of turns, tools and variables, up to an answer where it `begins`; empty if the
        template raises an error.
        """
        ...


QUESTION: Turn = {"role": "user", "content": "probe_question"}
_ANSWER: Turn = {"role": "assistant", "content": "probe_answer"}
_TOOL = {"name": "probe_tool", "description": "", "parameters": {"type": "object", "properties": {}}}
_SHOWN = {"type": "function", "function": _TOOL}
_OUTCOME = {"role": "tool", "name": CALLED, "tool_call_id": PROBE_ID, "content": "probe_outcome"}
_LONG_ID = "call_0123456789abcdef01234567"  # as ours
_OF_CALLS = ("probe_tool", CALLED, "7301", "probe_outcome")
_EMPTY: tuple[Turn, ...] = ({}, {"content": ""}, {"content": None}, {"content": []})
_SWITCHES = ("enable_thinking", "thinking")  # variables that are true or false


class _CallTurn(NamedTuple):
    """The way a turn that only calls has to be given, and a conversation with one."""

    content: Turn  # absent, or the first kind of none that it takes
    as_text: bool  # arguments are JSON text
    shown: str

    def turn(self, calls: Sequence[Turn]) -> Turn:
        return {"role": "assistant", **self.content, "tool_calls": list(calls)}

    def arguments(self, given: object) -> object:
        return json.dumps(given, ensure_ascii=False) if self.as_text else given


class TemplateProbes:
    def __init__(self, render: Render) -> None:
        self._render = render

    @property
    def knows_tools(self) -> bool:
        return _shows_calls(self.calling.shown)

    @cached_property
    def call_form(self) -> CallForm | str:
        """The form in which it shows calls, so that its model writes them; a text names one that is not known
        here. Hermes' for a template without tools, whose model is told of it.
        """
        if not self.knows_tools:
            return HERMES
        arguments = self.calling.arguments(ARGUMENTS)
        return form_of(self._at_end, self.calling.turn, self.in_form(_ANSWER), arguments)

    def call_id(self, own_id: str) -> str:
        """Returns the id; one of nine letters and digits in its place where the template takes only such."""
        if not own_id or not self._takes_short_ids_only:
            return own_id
        return hashlib.sha256(own_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]

    @cached_property
    def takes_cut_arguments(self) -> bool:
        """True if the template shows arguments that are no JSON; others take them apart."""
        return CALLED in self._at_end(self.calling.turn([call_of(PROBE_ID, CALLED, '{"probe_key')]))

    @cached_property
    def _takes_short_ids_only(self) -> bool:
        given = self.calling.arguments(ARGUMENTS)
        short, long = (
            self._at_end(self.calling.turn([call_of(own_id, CALLED, given)]))
            for own_id in (PROBE_ID, _LONG_ID)
        )
        return CALLED in short and not long

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
    def calling(self) -> _CallTurn:
        tried: list[_CallTurn] = []
        for as_text in (False, True):
            for content in _EMPTY:
                way = _CallTurn(content, as_text, "")
                turn = way.turn([call_of(PROBE_ID, CALLED, way.arguments(ARGUMENTS))])
                turns = [self.in_form(QUESTION), turn, self.in_form(_OUTCOME)]
                tried.append(way._replace(shown=self._render(turns, [_SHOWN], {})))
                if _shows_calls(tried[-1].shown):
                    return tried[-1]
        return tried[0]

    def _at_end(self, turn: Turn) -> str:
        return self._render([self.in_form(QUESTION), turn], [_SHOWN], {}, begins=False)

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
