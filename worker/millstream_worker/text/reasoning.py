"""Separates thoughts of reasoning models: where one begins and ends, by the tokens <think> and </think>."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from millstream_worker.text.token_bytes import TokenBytes, Utf8Decoder

THINK_BEGIN, THINK_END = "<think>", "</think>"  # around a thought


class ThoughtStart(Enum):
    """The state of a thought where the prompt ends. It tells if the thought has begun, or may begin."""

    OPEN = "open"  # the prompt has begun it
    AMID = "amid"  # the prompt has begun it, and some of its text
    POSSIBLE = "possible"  # the first token may begin it
    NONE = "none"  # it is over


class TakenThought(NamedTuple):
    """The part of an output's tokens that is a thought."""

    text: str
    skipped: int  # tokens that are none of the answer's: of these, and of earlier ones that were held
    answer: Sequence[int]  # tokens


@dataclass(frozen=True, slots=True)
class ThinkTokens:
    begin: int
    end: int

    @property
    def header(self) -> None:
        """Its messages have none: see `ChannelTokens`."""

    def begin_behind(self, start: ThoughtStart) -> int | None:
        """Returns the token that may begin a thought; None where the prompt has begun it."""
        return self.begin if start is ThoughtStart.POSSIBLE else None

    def start(self, prompt: Sequence[int], token_bytes: TokenBytes) -> ThoughtStart:
        """Reads it from the end of a rendered prompt, behind which only white space may stand: what a message
        quotes does not count.
        """
        for token in reversed(prompt):
            if token == self.begin:
                return ThoughtStart.OPEN
            if token == self.end:
                return ThoughtStart.NONE
            if token_bytes.of(token).strip():
                break
        return ThoughtStart.POSSIBLE


class _Place(Enum):
    BEFORE = 1
    BEGUN = 2  # of its text only line feeds have come
    INSIDE = 3
    ENDED = 4  # of the answer only line feeds have come
    ANSWER = 5


_PLACES = {
    ThoughtStart.OPEN: _Place.BEGUN,
    ThoughtStart.AMID: _Place.INSIDE,
    ThoughtStart.POSSIBLE: _Place.BEFORE,
    ThoughtStart.NONE: _Place.ANSWER,
}


class Thought:
    """The thought at the start of one output. It takes the tokens up to its end, with the line feeds around
    its text, and leaves the answer's.
    """

    ends_answer = answer_is_over = False  # as of `Channels`

    def __init__(self, tokens: ThinkTokens, start: ThoughtStart, token_bytes: TokenBytes) -> None:
        self._tokens = tokens
        self._token_bytes = token_bytes
        self._place = _PLACES[start]
        self._utf8 = Utf8Decoder(errors="replace")

    def feed(self, ids: Sequence[int]) -> TakenThought:
        """Returns what the next tokens of the output are."""
        pieces: list[bytes] = []
        for place, token in enumerate(ids):
            if self._place is _Place.ANSWER or not self._takes(token):
                self._place = _Place.ANSWER
                return TakenThought(self._text(pieces, final=True), place, ids[place:])
            if self._place is _Place.INSIDE:
                pieces.append(self._token_bytes.of(token))
        return TakenThought(self._text(pieces, final=self._place is _Place.ENDED), len(ids), ())

    def flush(self) -> str:
        """Returns the text held back, at the end of the output."""
        return self._text([], final=True)

    def _takes(self, token: int) -> bool:
        """Take one token. False: it belongs to the answer."""
        line_feeds = not self._token_bytes.of(token).strip(b"\n")
        match self._place:
            case _Place.BEFORE:
                self._place = _Place.BEGUN
                return token == self._tokens.begin
            case _Place.BEGUN | _Place.INSIDE if token == self._tokens.end:
                self._place = _Place.ENDED
            case _Place.BEGUN if not line_feeds:
                self._place = _Place.INSIDE
            case _Place.ENDED:
                return line_feeds
        return True

    def _text(self, pieces: Sequence[bytes], *, final: bool) -> str:
        return self._utf8.decode(b"".join(pieces), final)
