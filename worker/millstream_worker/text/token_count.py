"""Tokenizes texts of any length in bounded memory. A text with too many tokens is refused by its bytes if
these prove it; otherwise it is encoded in slices, until the limit is passed. (A tokenizer takes about 130
bytes for each byte that it is given at once.)
"""

from __future__ import annotations

import json

from tokenizers import Tokenizer

from millstream_worker.text.cuts import Cuts, Step, steps
from millstream_worker.text.token_bytes import byte_alphabet

SLICE_BYTES = 64 * 1024
MOST_UNCUT_BYTES = 512 * 1024  # without a place to cut
_NFC_SHORTENS = 4  # times, at most: the Kelvin sign becomes a K
_BYTES = {f"<0x{byte:02X}>" for byte in range(256)}


class TooLong(Exception):
    """A text has more tokens than allowed. `size`: its known size. `problem`: another reason to refuse."""

    def __init__(self, size: str, problem: str = "") -> None:
        self.size = size
        self.problem = problem
        super().__init__(f"{size} are too many; {problem}")


class TokenCounter:
    """May be called from several threads at once."""

    def __init__(
        self, tokenizer: Tokenizer, slice_bytes: int = SLICE_BYTES, most_uncut_bytes: int = MOST_UNCUT_BYTES
    ) -> None:
        self._tokenizer = tokenizer
        self._slice_bytes = slice_bytes
        self._most_uncut_bytes = most_uncut_bytes
        self._cuts = Cuts(tokenizer)
        self._first, self._last = _around(tokenizer)
        self.longest_token, self._silent = _longest_token(tokenizer)

    def check_bytes(self, data: bytes, most: int, start: int = 0, end: int | None = None) -> None:
        """Raises TooLong if data[start:end], a text in UTF-8, certainly has more than `most` tokens."""
        size = (len(data) if end is None else end) - start
        if self.longest_token is None or size <= most * self.longest_token:
            return
        if size - sum(data.count(byte, start, end) for byte in self._silent) > most * self.longest_token:
            raise TooLong(f"{size} bytes of text")

    def ids(
        self, text: str, *, add_special_tokens: bool, most: int | None = None, last: int | None = None
    ) -> list[int]:
        """The tokenizer's ids of the whole text. Raises TooLong as soon as more than `most` are certain; with
        `last` it returns only so many of the last ones, of a text of any length.
        """
        if last is not None:
            most = None
        if most is not None and self.longest_token is not None and 4 * len(text) > most * self.longest_token:
            self.check_bytes(text.encode(), most)
        before, after = (self._first, self._last) if add_special_tokens else ((), ())
        ids = list(before)
        step = self._slice_bytes if text.isascii() else self._slice_bytes // 4
        start = 0 if last is None else self._start_of_last(text, last)
        while start < len(text):
            if most is not None and len(ids) + len(after) > most:
                raise TooLong(f"more than {len(ids)} tokens")
            end, following = self._slice(text, start, step)
            ids.extend(self._encode(text[start:end]))
            if last is not None:
                del ids[:-last]
            start = following
        ids.extend(after)
        return ids[-(last or 0) :]

    def _start_of_last(self, text: str, count: int) -> int:
        """A place behind which the text has at least `count` tokens, from which on its ids are the same."""
        if self.longest_token is None or self._silent:
            return 0
        place = len(text) - count * self.longest_token
        cut = self._cuts.last(text, max(0, place - self._slice_bytes), place) if place > 0 else None
        return 0 if cut is None else cut[1]

    def _slice(self, text: str, start: int, step: int) -> tuple[int, int]:
        """The end of the slice, and the start of the next one."""
        begin, end = start, start + step
        while end < len(text):
            if (cut := self._cuts.last(text, begin, end)) is not None:
                return cut
            begin, end = end, end + step
            if _size(text[start:begin]) >= self._most_uncut_bytes:
                raise TooLong(
                    f"{_size(text)} bytes of text",
                    f"it has more than {self._most_uncut_bytes} bytes in a row without a place where this "
                    "model's tokenizer can take it apart; shorten it, or put spaces between words",
                )
        return len(text), len(text)

    def _encode(self, text: str) -> list[int]:
        """As the tokenizer's `encode`, which keeps the GIL, and takes twice the memory for offsets."""
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _around(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the tokenizer adds before and after every text."""
    encoding = tokenizer.encode("a")
    places = [place for place, added in enumerate(encoding.special_tokens_mask) if not added]
    if not places:  # the text itself has none
        return tuple(encoding.ids), ()
    return tuple(encoding.ids[: places[0]]), tuple(encoding.ids[places[-1] + 1 :])


def _longest_token(tokenizer: Tokenizer) -> tuple[int | None, list[int]]:
    """Most bytes of text in one token (None if unbounded), and the bytes without a token."""
    spec = json.loads(tokenizer.to_str())
    added = tokenizer.get_added_tokens_decoder().values()
    names = tokenizer.get_vocab(with_added_tokens=True)
    if any(token.lstrip or token.rstrip for token in added):
        return None, []
    if _is_byte_level(spec):
        silent = [byte for letter, byte in byte_alphabet().items() if letter not in names]
        own = {token.content for token in added}
        longest = max(len(name.encode()) if name in own else len(name) for name in names)
        if not spec["normalizer"]:
            return longest, silent
        return (None if silent else _NFC_SHORTENS * longest), []
    if _falls_back_to_bytes(spec, set(names)):
        return max(len(name.encode()) for name in names), []
    return None, []


def _is_byte_level(spec: Step) -> bool:
    """Each byte becomes a letter of a token, if the vocabulary has it."""
    splitters = steps(spec["pre_tokenizer"])
    return (
        spec["model"]["type"] == "BPE"
        and all(step["type"] == "NFC" for step in steps(spec["normalizer"]))
        and any(step["type"] == "ByteLevel" for step in splitters)
        and {step["type"] for step in splitters} <= {"ByteLevel", "Split", "Digits", "Punctuation"}
        and not any(step.get("behavior") == "Removed" for step in splitters)
    )


def _falls_back_to_bytes(spec: Step, names: set[str]) -> bool:
    """A character without a token of its own becomes one token for each of its bytes."""
    spaces = [step for step in steps(spec["normalizer"]) if step["type"] == "Replace"]
    splitters = steps(spec["pre_tokenizer"])
    return (
        bool(spec["model"].get("byte_fallback"))
        and names.issuperset(_BYTES)
        and {step["type"] for step in steps(spec["normalizer"])} <= {"Replace", "Prepend"}
        and all(step["pattern"] == {"String": " "} and step["content"] for step in spaces)
        and {step["type"] for step in splitters} <= {"Metaspace", "Split"}
        and not any(step.get("behavior") == "Removed" for step in splitters)
    )
