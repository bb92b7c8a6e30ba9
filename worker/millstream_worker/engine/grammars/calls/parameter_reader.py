"""Reads the parameters of one call, each by itself in the text, as a JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping

from millstream_worker.engine.grammars.calls.call_form import CallForm
from millstream_worker.engine.grammars.calls.parameters import (
    Parameter,
    closed_parameters,
    parameters_in,
    value_of,
)


class ParameterReader:
    """`known`: the function's parameters by name. `is_over`: the call's last parameter was read."""

    def __init__(self, form: CallForm, known: Mapping[str, Parameter]) -> None:
        self.is_over = False
        self._form = form
        self._known = known
        self._names = 0
        self._parameter: Parameter | None = None  # whose value is read
        self._begun = False  # a part of that value was given out

    def feed(self, held: str) -> tuple[str, str]:
        """Returns the JSON text that became certain, and the rest of the text."""
        made = ""
        while held and not self.is_over:
            step = self._key(held) if self._parameter is None else self._value(held, self._parameter)
            if step is None:
                break
            made, held = made + step[0], step[1]
        return made, held

    def _key(self, held: str) -> tuple[str, str] | None:
        form = self._form
        if not held.startswith(form.key):
            if form.key.startswith(held):
                return None
            self.is_over = True
            return "}" if self._names else "{}", held
        name, found, rest = held[len(form.key) :].partition(form.value)
        if not found:
            return None
        self._parameter = self._known.get(name) or Parameter(name, False, {}, True, None)
        self._begun = False
        self._names += 1
        return f"{'{' if self._names == 1 else ', '}{json.dumps(name, ensure_ascii=False)}: ", rest

    def _value(self, held: str, parameter: Parameter) -> tuple[str, str] | None:
        text, found, rest = held.partition(self._form.after)
        may_be_either = parameter.is_text and parameter.types != frozenset()
        if not found:
            if may_be_either:
                return None
            text = held[: len(held) - self._begun_end(held)]
            rest = held[len(text) :]
            if not text:
                return None
        else:
            self._parameter = None
        if may_be_either:
            return text if value_of(text, parameter.types) else json.dumps(text, ensure_ascii=False), rest
        if not parameter.is_text:
            return text, rest
        made = (
            ("" if self._begun else '"') + json.dumps(text, ensure_ascii=False)[1:-1] + ('"' if found else "")
        )
        self._begun = True
        return made, rest

    def _begun_end(self, text: str) -> int:
        """Returns how many of the last characters may be the beginning of what ends a value."""
        after = self._form.after
        longest = min(len(text), len(after) - 1)
        return next((size for size in range(longest, 0, -1) if after.startswith(text[-size:])), 0)


def parameter_reader(form: CallForm, parameters: str) -> ParameterReader:
    """Returns the reader of a call of a function with these parameters, JSON text."""
    known = parameters_in(closed_parameters(parameters)) or []
    return ParameterReader(form, {one.name: one for one in known})
