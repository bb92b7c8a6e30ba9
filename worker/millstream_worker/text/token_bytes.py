"""The bytes that each token id contributes to the text, computed once from the tokenizer's decoder.

This holds for all decoders in use: every token stands for some bytes, independent of its neighbours; only the
first token of a text is special (its leading space may be dropped). With a table of bytes, detokenizing is a
join and an incremental UTF-8 decoder: several times faster than tokenizers' DecodeStream (which cannot be
flushed either), and independent of how the tokens were split into calls.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Sequence
from copy import copy
from functools import cache
from typing import Any

from tokenizers import Tokenizer

_ToBytes = Callable[[str], bytes]
Utf8Decoder = codecs.getincrementaldecoder("utf-8")
_BYTE_NAME = re.compile("<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """`join(ids)`: the bytes of tokens that follow others; `first(id)`: of the first token of a text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        decoder = json.loads(tokenizer.to_str())["decoder"]
        to_bytes, self._plain_start = _rule(decoder)
        added = tokenizer.get_added_tokens_decoder()
        names = {index: name for name, index in tokenizer.get_vocab(with_added_tokens=True).items()}
        self._tokenizer = tokenizer
        self._names = names
        self._special = [index for index, token in added.items() if token.special]
        self._is_local = to_bytes is not None
        self._table = [b""] * (max(names, default=-1) + 1)
        for index, name in names.items():
            if index in added:
                self._table[index] = b"" if added[index].special else self._asked(index)
            else:
                self._table[index] = self._asked(index) if to_bytes is None else to_bytes(name)

    @property
    def vocab_size(self) -> int:
        """One above the highest token id that the tokenizer knows."""
        return len(self._table)

    def with_names(self, *token_ids: int) -> TokenBytes:
        """A copy in which these special tokens have their name as text."""
        other = copy(self)
        other._table = list(self._table)
        for token_id in token_ids:
            other._table[token_id] = self._names[token_id].encode()
        return other

    def with_special(self) -> TokenBytes:
        """A copy in which all special tokens are text, as the tokenizer has them if it skips none."""
        other = self.with_names(*self._special)
        if not self._is_local:
            for token_id in self._special:
                other._table[token_id] = self._asked(token_id)
        return other

    def of(self, token_id: int) -> bytes:
        """Empty for special tokens, and for ids that only pad the model's embedding."""
        return self._table[token_id] if token_id < len(self._table) else b""

    def join(self, ids: Sequence[int]) -> bytes:
        try:
            return b"".join(map(self._table.__getitem__, ids))
        except IndexError:
            return b"".join(map(self.of, ids))

    def first(self, token_id: int) -> bytes:
        """The token's bytes at the start of a text: mostly without the leading space."""
        piece = self.of(token_id)
        if self._plain_start or not piece:
            return piece
        try:
            piece.decode()
        except UnicodeDecodeError:
            return piece  # a partial character: no space in front of it
        text: str = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return text.encode()

    def shown(self, token_id: int) -> tuple[str, list[int] | None]:
        """A single token for logprobs: its text, special tokens by their name and parts of a character as
        U+FFFD, and its bytes where the text does not show them.
        """
        own = self.of(token_id)
        text = own.decode(errors="replace") or self._names.get(token_id, "")
        return text, None if text.encode() == own and "\ufffd" not in text else list(own)

    def _asked(self, token_id: int) -> bytes:
        """The text that the tokenizer itself adds for the token after another one."""
        alone, twice = (self._tokenizer.decode([token_id] * n, skip_special_tokens=False) for n in (1, 2))
        return str(twice).removeprefix(alone).encode()


def _rule(decoder: dict[str, Any] | None) -> tuple[_ToBytes | None, bool]:
    """The conversion of a token's name to bytes (None: ask the tokenizer); True if also at a text's start."""
    steps = [] if decoder is None else decoder.get("decoders", [decoder])
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds and kinds <= {"ByteLevel", "Fuse"}:
        return _byte_level, True
    if kinds and kinds <= {"Replace", "ByteFallback", "Fuse", "Strip"} and all(map(_is_local, steps)):
        swaps = [(step["pattern"]["String"], step["content"]) for step in steps if step["type"] == "Replace"]
        return _swapper(swaps, "ByteFallback" in kinds), "Strip" not in kinds
    return None, False


def _is_local(step: dict[str, Any]) -> bool:
    """A step that transforms one token at a time, apart from the start of the text."""
    literal = step["type"] != "Replace" or "String" in step["pattern"]
    return literal and not step.get("stop", 0)


def _byte_level(name: str) -> bytes:
    alphabet = byte_alphabet()
    try:
        return bytes(alphabet[letter] for letter in name)
    except KeyError:  # not spelled in the alphabet: decoders take such a name literally
        return name.encode()


def _swapper(swaps: Sequence[tuple[str, str]], byte_fallback: bool) -> _ToBytes:
    def to_bytes(name: str) -> bytes:
        if byte_fallback and (spelled := _BYTE_NAME.fullmatch(name)):
            return bytes.fromhex(spelled[1])
        for old, new in swaps:
            name = name.replace(old, new)
        return name.encode()

    return to_bytes


@cache
def byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes as printable letters (github.com/openai/gpt-2, encoder.py)."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    rest = [byte for byte in range(256) if byte not in set(printable)]
    spelled = {chr(byte): byte for byte in printable}
    return spelled | {chr(256 + place): byte for place, byte in enumerate(rest)}
