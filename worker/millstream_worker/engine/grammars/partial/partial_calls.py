"""The check of calls whose arguments a grammar keeps in part only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from llguidance import LLTokenizer

from millstream_worker.engine.grammars.calls.call_form import CallForm
from millstream_worker.engine.grammars.calls.call_reader import calls_in
from millstream_worker.engine.protocol.request import GrammarSpec

TAKES_TOO_LONG = "it takes too much time, or memory, to validate them"


class PartialCalls:
    """`schemas`: of the functions' arguments, whole, as JSON text by name."""

    def __init__(self, schemas: Mapping[str, str], spec: GrammarSpec, tokenizer: LLTokenizer) -> None:
        self._schemas = schemas
        self._slow: dict[str, str] = {}  # why, by name
        self._tokenizer = tokenizer
        self._thought_end = spec.thought_end
        self._channel = None if spec.channels is None else spec.channels[1]
        form = json.loads(spec.text)
        self._form, self._at_start = CallForm.of_plain(form["form"]), spec.answer is not None
        self._functions = {name: parameters for name, parameters, _ in form["functions"]}
        self._tags = {token: text.encode() for text, token in form["tokens"].items()}

    def problem(self, output: Sequence[int], check: Callable[[str, str], str]) -> str:
        """Returns why a call in the output does not fit; empty if all do. `check` returns why the arguments
        do not fit their schema, both as JSON text.
        """
        for call in calls_in(
            self._text(self._answer(output)), self._form, self._functions, at_start=self._at_start
        ):
            if call.name in self._schemas and (problem := self._problem(call.name, call.arguments, check)):
                return f"the arguments of {call.name} do not fit its parameters: {problem}"
        return ""

    def _answer(self, output: Sequence[int]) -> Sequence[int]:
        """The tokens behind the thought; with channels, the last message with its header."""
        if self._channel in output:
            return output[-1 - output[::-1].index(self._channel) :]
        return output[output.index(self._thought_end) + 1 :] if self._thought_end in output else output

    def _problem(self, name: str, arguments: str, check: Callable[[str, str], str]) -> str:
        """A schema that has taken too long is not tried again: others wait for that."""
        if name in self._slow:
            return self._slow[name]
        problem = check(self._schemas[name], arguments)
        if problem.startswith(TAKES_TOO_LONG):
            self._slow[name] = problem
        return problem

    def _text(self, output: Sequence[int]) -> str:
        pieces = [self._tags.get(token) or self._tokenizer.decode_bytes([token]) for token in output]
        return b"".join(pieces).decode("utf-8", "replace")
