"""The grammar of an answer that calls functions, or may, around the grammars of their arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millstream_worker.engine.grammars.calls.call_form import CallForm, is_tag
from millstream_worker.engine.grammars.calls.parameters import Parameter

ANY_TEXT = "/(?s:.*)/"


@dataclass(frozen=True, slots=True)
class CallFrame:
    """Lines of a grammar in Lark, whose rules `@arguments_0` … and, where the answer may be of a format,
    `@answer` are others. `tokens`: ids of the texts that are one added token of the model's. `parameters`: of
    each function, where the form writes them one by one; `@value_0_1` is then the second of the first.
    """

    form: CallForm
    names: Sequence[str]
    tokens: Mapping[str, int]
    many: bool
    parameters: Sequence[Sequence[Parameter] | None] = ()

    def lines(self, *, may_be_text: bool, has_format: bool, goes_on: bool = False) -> list[str]:
        """`goes_on`: text may follow a call, as workers of version 0.2.0 allowed."""
        if has_format and not self.form.tag:  # the call is a rule with its arguments: see `call_schema`
            called = " | ".join(f"@arguments_{place}" for place in range(len(self.names)))
            return [f"start: @answer | {called}"]
        head = self._literal(self.form.answer)
        if has_format:
            return [f"start: calls | {head} @answer", *self._calls()]
        if not may_be_text:
            return ["start: calls", *self._calls()]
        if head:
            return [f"start: calls | {head} TEXT", f"TEXT: {_not_behind(self.form.begin)}", *self._calls()]
        tag, calls = self.form.tag, self._calls()
        if not tag:
            return ["start: calls | TEXT", f"TEXT: {_not_behind(self.form.begin)}", *calls]
        text = f"TEXT: {without(tag, *(other for other in self.tokens if is_tag(other) and other != tag))}"
        if tag in self.tokens:
            head, start, lines = "TEXT", "start: TEXT calls?", [text]
        else:  # the text up to the tag, and it
            head, start = "head", "start: head calls | TEXT"
            lines = [text, f"head[lazy]: ANY {json.dumps(tag)}", f"ANY: {ANY_TEXT}"]
            calls = self._calls(self.form.begin.removeprefix(tag))
        if goes_on:
            start = f"start: ({head} calls){'*' if self.many else '?'} TEXT"
        return [start, *lines, *calls]

    def _calls(self, begin: str | None = None) -> list[str]:
        form = self.form
        middles = [self._literal(name + form.middle) for name in self.names]
        functions = " | ".join(f"{middle} {self._arguments(place)}" for place, middle in enumerate(middles))
        close, shared = self._literal(form.close), len(form.close)
        more = f" ({self._literal(form.joint[shared:])} call)*" if self.many and form.joint else ""
        end = self._literal(form.end[shared:])
        first = self._literal(form.begin if begin is None else begin)
        lines = [f"calls: {first} call{more} {end}", f"call: ({functions}) {close}"]
        return [*lines, *self._value_lines()] if form.key else lines

    def _arguments(self, place: int) -> str:
        if not self.form.key:
            return f"@arguments_{place}"
        known = self.parameters[place]
        if known is None:
            return (
                f"({self._literal(self.form.key)} NAME {self._literal(self.form.value)} {self._any_value()})*"
            )
        return " ".join(self._parameter(f"@value_{place}_{number}", one) for number, one in enumerate(known))

    def _parameter(self, rule: str, one: Parameter) -> str:
        form = self.form
        head = self._literal(form.key + one.name + form.value)
        if one.texts:
            value = f"({' | '.join(self._literal(text + form.after) for text in one.texts)})"
        else:
            value = self._any_value() if one.is_text else f"{rule} {self._literal(form.after)}"
        return f"{head} {value}" if one.required else f"({head} {value})?"

    def _any_value(self) -> str:
        """Any text, and what ends a value."""
        before, rest = self._value_end()
        return f"{'any_value' if before else 'VALUE'} {self._literal(rest)}"

    def _value_lines(self) -> list[str]:
        name = 'NAME: /[^<>"\\n]+/'
        before, rest = self._value_end()
        if before:
            return [name, f"any_value[lazy]: SOME {json.dumps(before)}", f"SOME: {ANY_TEXT}"]
        token = max((one for one in self.tokens if rest.startswith(one)), key=len)
        return [name, f"VALUE: {without(token)}"]

    def _value_end(self) -> tuple[str, str]:
        """Returns the text behind a value up to its first added token, and from that on."""
        after = self.form.after
        place = min((after.index(token) for token in self.tokens if token in after), default=len(after))
        return after[:place], after[place:]

    def _literal(self, text: str) -> str:
        """The text as a sequence of strings and tokens."""
        if not text:
            return ""
        found = sorted(self.tokens, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, found))})", text) if found else [text]
        return " ".join(
            f"<[{self.tokens[part]}]>" if part in self.tokens else json.dumps(part) for part in parts if part
        )


def without(*words: str) -> str:
    """A rule for any text without these words: they are tokens, and must not be spelled by other tokens."""
    return ANY_TEXT + "".join(f" & ~/(?s:.*){_escaped(word)}(?s:.*)/" for word in words)


def _not_behind(start: str) -> str:
    """A rule for any text that does not begin so, also behind white space."""
    return f"{ANY_TEXT} & ~/\\s*{_escaped(start)}(?s:.*)/"


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", "\\/").replace("\n", "\\n")
