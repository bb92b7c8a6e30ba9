"""Reads the calls in an answer's text, which comes in pieces, in the form to which its grammar keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from io import StringIO

from millstream_worker.engine.grammars.calls.call_form import CallForm
from millstream_worker.engine.grammars.calls.json_end import JsonEnd
from millstream_worker.engine.grammars.calls.parameter_reader import ParameterReader, parameter_reader


@dataclass(slots=True, eq=False)
class ReadCall:
    """`size`: the number of characters of its arguments that were read. `whole`: they came to their end."""

    name: str
    whole: bool = False
    size: int = 0
    _text: StringIO = field(default_factory=StringIO)

    @property
    def arguments(self) -> str:
        """Returns JSON text, as far as it was read."""
        return self._text.getvalue()

    def add(self, text: str) -> None:
        self._text.seek(self.size)
        self.size += self._text.write(text)

    def part(self, begin: int, end: int) -> str:
        self._text.seek(begin)
        return self._text.read(end - begin)


class _CallStage(Enum):
    TEXT = auto()  # before the calls
    OPENING = auto()  # at a call's begin, or the joint before it
    ARGUMENTS = auto()
    BEHIND = auto()  # behind a call's arguments
    OVER = auto()  # behind the last call


class CallReader:
    """`functions`: parameters by name, as JSON text; `at_start`: the answer begins with a call or has none,
    as one with a format, or of a form that has a head for texts. `calls` grows as the text comes.
    """

    def __init__(self, form: CallForm, functions: Mapping[str, str], *, at_start: bool = False) -> None:
        self.calls: list[ReadCall] = []
        self._form = form
        self._functions = functions
        self._heads = {head: name for name in functions for head in form.head_of(name)}
        self._tag = form.tag
        self._at_start = at_start or bool(form.answer) or not form.tag
        self._opening = form.begin
        self._stage = _CallStage.TEXT
        self._may_begin = True  # False: the answer is text that has begun otherwise
        self._held = ""  # read, and not yet known to be content or a call
        self._blank: list[str] = []  # white space before that, of which the same is so
        self._end = JsonEnd()
        self._parameters: ParameterReader | None = None  # of the call that is read

    @property
    def begun(self) -> bool:
        """True if the text has come to a call."""
        return self._stage is not _CallStage.TEXT

    def feed(self, text: str) -> str:
        """Returns the content that became certain: the text before all calls, without white space before
        these.
        """
        self._held += text
        content = ""
        while self._held and (step := self._step()) is not None:
            content += step
        return content

    def finish(self, *, is_cut: bool) -> str:
        """Returns the content that was held, at the text's end. `is_cut`: the text might have gone on; a tag
        of which all but the first character stands there is none of the content.
        """
        held, self._held = self._held, ""
        if self.begun:  # an answer's text may begin as a call does that has no tag
            return "" if is_cut or self.calls or self._tag else held
        tail = self._begun_tag(held) if is_cut else 0
        blank = "".join(self._blank)
        return (blank + held[: len(held) - tail]).rstrip() if tail > 1 else blank + held

    def adopt(self, calls: Iterable[tuple[str, str]]) -> None:
        """Take calls, by name and arguments, as those of a text that has ended."""
        for name, arguments in calls:
            self.calls.append(ReadCall(name, whole=True))
            self.calls[-1].add(arguments)
            self._stage = _CallStage.OVER

    def _step(self) -> str | None:
        """Takes what is certain off the held text; returns the content in it. None: more text is needed."""
        match self._stage:
            case _CallStage.TEXT:
                return self._text()
            case _CallStage.OPENING:
                return self._open()
            case _CallStage.ARGUMENTS:
                return self._arguments()
            case _CallStage.BEHIND:
                return self._behind()
            case _CallStage.OVER:
                # only answers of workers of version 0.2.0 have text, and more calls, behind a call
                return self._seek_tag()

    def _text(self) -> str | None:
        if self._may_begin and self._at_start:
            begin = self._tag or self._opening
            if self._held.startswith(begin):
                self._stage = _CallStage.OPENING
                return ""
            if begin.startswith(_whole(self._held)):
                return None
            self._may_begin = False
        elif self._may_begin and self._tag in self._held:
            content = self._held.partition(self._tag)[0]
            self._held = self._held[len(content) :]
            self._stage = _CallStage.OPENING
            return self._without_blank(content)
        content = self._held[: len(self._held) - self._begun_tag(self._held)]
        self._held = self._held[len(content) :]
        return self._without_blank(content) or None

    def _without_blank(self, content: str) -> str:
        """Returns the content up to the white space at its end, which is kept."""
        shown = content.rstrip()
        before = "".join(self._blank) if shown else ""
        if shown:
            self._blank.clear()
        if len(shown) < len(content):
            self._blank.append(content[len(shown) :])
        return before + shown

    def _open(self) -> str | None:
        rest = self._held.removeprefix(self._opening)
        head = next((head for head in self._heads if rest.startswith(head)), None)
        if head is not None:
            name = self._heads[head]
            self.calls.append(ReadCall(name))
            self._held, self._stage = rest[len(name + self._form.middle) :], _CallStage.ARGUMENTS
            self._end = JsonEnd()
            self._parameters = parameter_reader(self._form, self._functions[name]) if self._form.key else None
            return ""
        if self._opening.startswith(_whole(self._held)):
            return None
        if any(head.startswith(_whole(rest)) for head in self._heads):
            return None
        if self.calls:
            self._held, self._stage = self._held[1:], _CallStage.OVER
        else:
            self._may_begin, self._stage = False, _CallStage.TEXT
        return ""

    def _arguments(self) -> str | None:
        if self._parameters is not None:
            return self._read_parameters(self._parameters)
        call, end = self.calls[-1], self._end.feed(self._held)
        call.add(self._held[:end])
        self._held = "" if end is None else self._held[end:]
        if end is not None:
            call.whole, self._stage = True, _CallStage.BEHIND
        return ""

    def _read_parameters(self, reader: ParameterReader) -> str | None:
        before = len(self._held)
        made, self._held = reader.feed(self._held)
        self.calls[-1].add(made)
        if reader.is_over:
            self.calls[-1].whole, self._stage = True, _CallStage.BEHIND
            return ""
        return "" if len(self._held) < before else None

    def _behind(self) -> str | None:
        joint, end = self._form.joint, self._form.end
        if joint and self._held.startswith(joint):
            self._opening, self._stage = joint, _CallStage.OPENING
            return ""
        if joint.startswith(self._held) or end.startswith(self._held):
            return None
        self._stage = _CallStage.OVER
        return ""

    def _seek_tag(self) -> str | None:
        if self._tag and self._tag in self._held:
            self._held = self._held[self._held.index(self._tag) :]
            self._opening, self._stage = self._form.begin, _CallStage.OPENING
            return ""
        self._held = self._held[len(self._held) - self._begun_tag(self._held) :]
        return None

    def _begun_tag(self, text: str) -> int:
        """Returns how many of the last characters may be the beginning of the tag."""
        whole = _whole(text)
        longest = min(len(whole), len(self._tag) - 1) if self._may_begin else 0
        found = next((size for size in range(longest, 0, -1) if self._tag.startswith(whole[-size:])), 0)
        return found and found + len(text) - len(whole)


def _whole(text: str) -> str:
    """The text without what a last character has become that was cut in its bytes."""
    return text.removesuffix("\ufffd")


def calls_in(
    text: str, form: CallForm, functions: Mapping[str, str], *, at_start: bool = False
) -> list[ReadCall]:
    """Returns the calls of a text, the last of which may be cut."""
    reader = CallReader(form, functions, at_start=at_start)
    reader.feed(text)
    return reader.calls
