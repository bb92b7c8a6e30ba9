"""Judges a turn that was asked whole and streamed: by the rules of all answers, and by its tokens."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from conformance.turns.call_forms import CallForm, RawCalls, plain
from conformance.watch.answers import BrokenRule, ReadChoice, choices_of
from conformance.watch.exchanges import Exchange
from conformance.watch.rules import faults


@dataclass(slots=True)
class TurnJudge:
    """`counts`: what the answers were; `faults`: one line for each that was found."""

    form: CallForm
    tokenizer: Any
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def judge(self, whole: Exchange, streamed: Exchange) -> ReadChoice | None:
        """Returns the first choice; None if one of the two answers cannot be read."""
        found = [*faults(whole, self.form.marks), *faults(streamed, self.form.marks)]
        self.counts["turns"] += 1
        try:
            ours, theirs = ([] if one.status != 200 else choices_of(one) for one in (whole, streamed))
        except BrokenRule:
            ours = theirs = []
        if ours and theirs:
            raws = [self._raw(choice) for choice in json.loads(whole.told)["choices"]]
            for raw, one, other in zip(raws, ours, theirs, strict=True):
                found += self._of_choice(raw, one, other, whole.asked)
        asked = {name: value for name, value in whole.asked.items() if name != "messages"}
        self.faults += [f"{fault} | asked: {json.dumps(asked)[:700]}" for fault in found]
        return ours[0] if ours and theirs else None

    def _of_choice(
        self, raw: str, one: ReadChoice, other: ReadChoice, asked: dict[str, Any]
    ) -> Iterator[str]:
        self.counts["choices"] += 1
        self.counts["choices that were cut"] += one.is_cut
        self.counts["choices with calls"] += bool(one.calls)
        self.counts["calls"] += len(one.calls)
        self.counts["complete choices with calls"] += bool(one.calls and one.complete)
        is_json = bool(asked.get("response_format")) and not raw.lstrip().startswith(self.form.marks or "{")
        drawn = RawCalls([]) if is_json else self.form.read(raw)  # JSON may mention what begins a call
        self.counts["whole calls among the tokens"] += len(drawn.whole)
        self.counts["calls that were cut"] += drawn.begun is not None
        told = [(call.name, call.arguments) for call in one.calls]
        for place, call in enumerate(drawn.whole):
            if place >= len(told) or not _is_same(told[place], call, loosely=self.form.by_parameter):
                yield f"call {place} of the tokens is not told: {call}; told: {told}; tokens: {raw[-300:]!r}"
        rest = told[len(drawn.whole) :]
        if drawn.begun is None and rest:
            yield f"calls are told that the tokens do not have: {rest}; tokens: {raw[-300:]!r}"
        elif drawn.begun is not None and not (len(rest) == 1 and _is_begun(rest[0], drawn.begun)):
            yield f"a begun call is told as {rest}; tokens: {raw[-300:]!r}"
        if self._seen(one) != self._seen(other):
            yield f"whole and streamed differ: {one} | {other}"

    def _raw(self, choice: dict[str, Any]) -> str:
        """All text of the choice's tokens behind its thought."""
        text: str = self.tokenizer.decode(choice["token_ids"], skip_special_tokens=False)
        if self.form.in_channels:
            return text[max(text.rfind("<|channel|>"), 0) :].removesuffix(self.tokenizer.eos_token)
        if choice["message"].get("reasoning_content") or text.startswith("<think>"):
            text = text.partition("</think>")[2]
        return text.removesuffix(self.tokenizer.eos_token)

    @staticmethod
    def _seen(choice: ReadChoice) -> tuple[object, ...]:
        """But for ids, which are each job's own, and white space around calls."""
        calls = [(call.name, call.arguments) for call in choice.calls]
        return choice.content.strip(), calls, choice.finish_reason, choice.complete


def _is_same(told: tuple[str, str], drawn: tuple[str, str], *, loosely: bool) -> bool:
    """`loosely`: a text that looks like JSON is the same as that."""
    try:
        ours, theirs = json.loads(told[1]), json.loads(drawn[1])
    except ValueError:
        return False
    if loosely and isinstance(ours, dict):
        ours = {name: plain(value) if isinstance(value, str) else value for name, value in ours.items()}
    return told[0] == drawn[0] and ours == theirs


def _is_begun(told: tuple[str, str], drawn: tuple[str, str | None]) -> bool:
    """A part of a character may be held back at the cut."""
    return told[0] == drawn[0] and (drawn[1] is None or drawn[1].startswith(told[1]))
