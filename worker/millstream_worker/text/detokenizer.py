"""Detokenizes one choice incrementally: no partial characters, and no text that may yet become a stop string.

The text does not depend on how the ids are split into calls, and equals decoding them all at once (except
that of invalid UTF-8 from byte-fallback tokens only the invalid bytes become U+FFFD).
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream_worker.text.token_bytes import TokenBytes, Utf8Decoder


class Detokenizer:
    """`feed` sampled ids, `flush` at the choice's end; after `stopped` it returns no more text.

    Stop strings are not searched in the text of the first `min_tokens` ids. `with_stop`: the text ends behind
    the stop string, not before it. `begun`: the text goes on with another one.
    """

    def __init__(
        self,
        token_bytes: TokenBytes,
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        *,
        with_stop: bool = False,
        begun: bool = False,
    ) -> None:
        self.token_bytes = token_bytes
        self.with_stop = with_stop
        self._stop = tuple(stop)
        self._min_tokens = min_tokens
        self._utf8 = Utf8Decoder(errors="replace")
        self._goes_on = begun
        self._begun = begun  # a token with text has been seen: the next ones are not the first
        self._count = 0
        self._skipped = 0  # of those, before all others
        self._ids: list[int] = []  # kept only if a stop string may need the token that it began in
        self._held = ""  # decoded, but possibly the beginning of a stop string
        self._released = 0  # characters returned
        self._kept: int | None = None

    @property
    def stopped(self) -> bool:
        """A stop string was found; the text ends there."""
        return self._kept is not None

    @property
    def kept_tokens(self) -> int:
        """The number of ids fed so far that contribute to the text: those that begin before its end."""
        return self._count if self._kept is None else self._kept

    @property
    def undecided(self) -> bool:
        """Characters are held back: the last ids may turn out to lie behind a stop string."""
        return bool(self._held) or bool(self._utf8.getstate()[0])

    def feed(self, ids: Sequence[int]) -> str:
        """The text that became certain with these ids; it may be empty, or have characters begun before."""
        if self._kept is not None:
            return ""
        free = max(0, self._min_tokens - self._count) if self._stop else len(ids)
        self._count += len(ids)
        text = self._utf8.decode(self._bytes(ids[:free]))
        if not self._stop:
            return text
        self._ids += ids
        self._released += len(text)
        return text + self._release(self._utf8.decode(self._bytes(ids[free:])), final=False)

    def skip(self, count: int) -> None:
        """Count ids that come before the text, and contribute nothing to it."""
        assert self._count == self._skipped, "they come before anything is fed"
        self._count += count
        self._skipped += count

    def end(self) -> str:
        """End the text behind the ids fed so far, as a stop string does. Returns what was held back."""
        text = self.flush()
        self._kept = self._count if self._kept is None else self._kept
        return text

    def flush(self) -> str:
        """The text held back, at the end of the choice: no more tokens follow."""
        if self._kept is not None:
            return ""
        return self._release(self._utf8.decode(b"", final=True), final=True)

    def resume(self, ids: Sequence[int], emitted_chars: int) -> str:
        """Resume a choice of an earlier attempt, from all its logged ids and the number of published
        characters.

        Returns the certain text beyond that. A stop string in it counts as usual.
        """
        assert self._count == self._skipped, "resume comes before anything is fed"
        return self.feed(ids)[emitted_chars:]

    def _bytes(self, ids: Sequence[int]) -> bytes:
        if self._begun:
            return self.token_bytes.join(ids)
        for place, token_id in enumerate(ids):
            if self.token_bytes.of(token_id):
                self._begun = True
                return self.token_bytes.first(token_id) + self.token_bytes.join(ids[place + 1 :])
        return b""

    def _release(self, text: str, final: bool) -> str:
        text = self._held + text
        found = min(
            ((start + len(stop), start) for stop in self._stop if (start := text.find(stop)) >= 0),
            default=None,
        )
        # the stop string that was complete first, as if the text had come letter by letter
        if found is not None:
            end = found[0] if self.with_stop else found[1]
            self._held = ""
            self._kept = self._tokens_before(self._released + end)
            return text[:end]
        keep = 0 if final else self._undecided(text)
        self._held = text[len(text) - keep :]
        text = text[: len(text) - keep]
        self._released += len(text)
        return text

    def _undecided(self, text: str) -> int:
        """Length of the longest suffix of `text` with which a stop string could begin."""
        most = min(max(map(len, self._stop)) - 1, len(text))
        for length in range(most, 0, -1):  # long ones first: what is held is found at once
            tail = text[-length:]
            if any(stop.startswith(tail) and stop != tail for stop in self._stop):
                return length
        return 0

    def _tokens_before(self, chars: int) -> int:
        """The number of leading tokens that begin before character `chars` of the text; once, at a stop."""
        replay = Detokenizer(self.token_bytes, begun=self._goes_on)
        length = 0
        for place, token_id in enumerate(self._ids):
            if length >= chars:
                return self._skipped + place
            length += len(replay.feed([token_id]))
        return self._skipped + len(self._ids)
