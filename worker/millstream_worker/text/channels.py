"""Separates the channels of harmony, gpt-oss' form of answers (github.com/openai/harmony): thoughts, then the
final text or a call, each a message behind a header that names its channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millstream_worker.text.reasoning import TakenThought, ThoughtStart
from millstream_worker.text.token_bytes import TokenBytes, Utf8Decoder

CHANNEL_NAMES = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
_CALLED = b"to=functions."
_FINAL = b"final"
_LONGEST_HEADER = 300  # tokens; a function's name has up to 128 characters


@dataclass(frozen=True, slots=True)
class ChannelTokens:
    """The tokens of `CHANNEL_NAMES`: before a header, before its channel, behind it, and behind a message."""

    begin: int
    channel: int
    message: int
    end: int

    @property
    def header(self) -> tuple[int, int, int]:
        return self.begin, self.channel, self.message

    def begin_behind(self, start: ThoughtStart) -> int | None:
        """Returns the token that may begin a thought; None where the prompt has begun it."""
        return self.channel if start is ThoughtStart.POSSIBLE else None

    def start(self, prompt: Sequence[int], token_bytes: TokenBytes) -> ThoughtStart:
        """Reads it from the last header of a rendered prompt."""
        for place in range(len(prompt) - 1, -1, -1):
            if prompt[place] in (self.begin, self.end):
                break
            if prompt[place] == self.message:
                header = prompt[max(0, place - _LONGEST_HEADER) : place]
                return ThoughtStart.NONE if self.is_final(header, token_bytes) else ThoughtStart.OPEN
        return ThoughtStart.POSSIBLE

    def is_final(self, header: Sequence[int], token_bytes: TokenBytes) -> bool:
        """True for the channel of the answer's text, and for a header that names none."""
        name = self.named(header, token_bytes)
        return name is None or name.startswith(_FINAL)

    def named(self, header: Sequence[int], token_bytes: TokenBytes) -> bytes | None:
        """Returns the channel, with what stands behind it up to the message; None without one."""
        own = header[_last(header, self.begin) + 1 :]
        place = _last(own, self.channel)
        return None if place < 0 else token_bytes.join(own[place + 1 :]).strip()


def _last(ids: Sequence[int], token: int) -> int:
    """Returns the last place of the token; -1 without one."""
    return next((place for place in range(len(ids) - 1, -1, -1) if ids[place] == token), -1)


class Channels:
    """The messages of one output. The answer is the final channel's, or text without a header, or a call
    with its header, if functions are `called`. All others are thoughts, which begin a line each.
    """

    ends_answer = True  # an answer is over at its message's end, even if the model does not end its turn

    def __init__(
        self, tokens: ChannelTokens, start: ThoughtStart, token_bytes: TokenBytes, *, called: bool
    ) -> None:
        self._tokens = tokens
        self._token_bytes = token_bytes
        self._called = called
        self._in_header = start is ThoughtStart.POSSIBLE
        self._in_answer = False
        self._has_said = not self._in_header
        self._held: list[int] = []  # a header that has no end yet
        self._utf8 = Utf8Decoder(errors="replace")
        self.answer_is_over = False

    def feed(self, ids: Sequence[int]) -> TakenThought:
        """Returns what the next tokens of the output are, and those that were held."""
        if self._in_answer:
            return TakenThought("", 0, self._answer(ids))
        ids = [*self._held, *ids]
        said: list[bytes] = []
        taken = self._read(ids, said)
        text = self._utf8.decode(b"".join(said), self._in_answer)
        return TakenThought(text, taken, self._answer(ids[taken:]))

    def _read(self, ids: list[int], said: list[bytes]) -> int:
        """Returns how many of the ids are none of the answer's; a header without an end is held."""
        self._held = []
        place = 0
        while place < len(ids) and not self._in_answer:
            if not self._in_header:
                end = _first(ids, self._tokens.end, place)
                said.append(self._token_bytes.join(ids[place:end]))
                self._in_header, place = end < len(ids), min(end + 1, len(ids))
                continue
            header = self._header_at(ids, place)
            if header is None:
                self._held = ids[place:]
                break
            place += self._open(header, said)
        return place

    def flush(self) -> str:
        """Returns the text held back, at the end of the output."""
        return self._utf8.decode(b"", final=True)

    def _header_at(self, ids: list[int], place: int) -> list[int] | None:
        """Returns the header with the token behind it; None: it may go on; empty: there is none."""
        end = _first(ids, self._tokens.message, place)
        begins = ids[place] in self._tokens.header
        if end < len(ids) and begins:
            return ids[place : end + 1]
        return None if begins and len(ids) - place <= _LONGEST_HEADER else []

    def _open(self, header: list[int], said: list[bytes]) -> int:
        """Begin the message behind the header. Returns how many tokens of that are none of the answer's."""
        name = self._tokens.named(header, self._token_bytes) if header else None
        if self._called and name is not None and _CALLED in name:
            self._in_answer = True
            return _last(header, self._tokens.channel)
        self._in_header = False
        self._in_answer = name is None or name.startswith(_FINAL)
        if not self._in_answer and self._has_said:
            said.append(b"\n")
        self._has_said = True
        return len(header)

    def _answer(self, ids: Sequence[int]) -> Sequence[int]:
        if self.answer_is_over or not self._in_answer:
            return ()
        end = _first(ids, self._tokens.end, 0)
        self.answer_is_over = end < len(ids)
        return ids[: end + 1]


def _first(ids: Sequence[int], token: int, place: int) -> int:
    """Returns the first place of the token from one on; the number of ids without one."""
    return next((found for found in range(place, len(ids)) if ids[found] == token), len(ids))
