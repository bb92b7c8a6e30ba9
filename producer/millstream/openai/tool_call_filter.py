"""Keeps the text of tool calls out of a stream, which shows only what is said beside them."""

from __future__ import annotations

from millstream.wire.messages.tools import CALL_BEGIN


class ToolCallFilter:
    """One choice's text without tool calls. The pieces add up to `Choice.content`, leading white space
    aside; without calls, to the whole text.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> str:
        """Takes new text; returns the part that can be shown now: nothing that may begin a call, or be white
        space before one.
        """
        self._held += text
        shown, call, _ = self._held.partition(CALL_BEGIN)
        if not call:
            shown = shown[: len(shown) - _begun_tag(shown)]
        shown = shown.rstrip()
        self._held = self._held[len(shown) :]
        return shown

    def rest(self, has_calls: bool) -> str:
        """Returns, at the end, the text that was held for calls that did not come."""
        return "" if has_calls else self._held


def _begun_tag(text: str) -> int:
    """Returns how many of the last characters may be the beginning of a call."""
    longest = min(len(text), len(CALL_BEGIN) - 1)
    return next((size for size in range(longest, 0, -1) if CALL_BEGIN.startswith(text[-size:])), 0)
