"""Amounts of memory in settings: a size ("2GiB"), or a share of the free memory ("0.6", "60%")."""

from __future__ import annotations

import re

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?")
_SHARE = re.compile(r"0?\.\d+|1\.0*|\d+(?:\.\d+)?%")


def size_bytes(text: str) -> int | None:
    """The bytes of "2GiB", "500MB" or "1073741824"; None if it is no size."""
    size = _SIZE.fullmatch(text.strip().lower())
    return None if size is None else int(float(size[1]) * _UNITS[size[2]])


def share_of(text: str) -> float | None:
    """The share of "0.6" or "60%"; None if it is no share. It may be 0, or above 1."""
    text = text.strip().lower()
    if not _SHARE.fullmatch(text):
        return None
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)
