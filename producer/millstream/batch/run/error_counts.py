"""Counts the reasons for the error rows of a run, with the text of the first of each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millstream.batch.rows.output_rows import OK

MAX_CAUSES = 1000  # that are counted separately: a field's path may hold a caller's own names
_PLACE = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Cause:
    """Error rows of one code and field."""

    count: int
    text: str  # of the first of them
    alike: bool  # all of them have this text


class Causes:
    """Mutable; one per run."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()  # by code and field, without places in lists
        self._texts: dict[tuple[str, str], str] = {}
        self._unlike: set[tuple[str, str]] = set()

    def add(self, row: Mapping[str, Any]) -> None:
        """Count one row of the error file."""
        error = row["error"]
        key = (error["code"], _PLACE.sub("", error["param"] or ""))
        if key not in self._texts and len(self._texts) >= MAX_CAUSES:
            key = ("…", "")
        text = _text(row)
        if self._texts.setdefault(key, text) != text:
            self._unlike.add(key)
        self._counts[key] += 1

    def commonest(self) -> tuple[Cause, ...]:
        """All causes, the most frequent first."""
        return tuple(
            Cause(count, self._texts[key], key not in self._unlike)
            for key, count in self._counts.most_common()
        )


def _text(row: Mapping[str, Any]) -> str:
    """The row's message without its line and job, which differ in each; with the field, or a job's code."""
    error, response = row["error"], row["response"] or {}
    text = error["message"].removeprefix(f"line {error['line']}: ")
    text = text.removeprefix(f"{response.get('request_id')}: ")
    has_failed = response.get("status_code", OK) != OK
    begin = error["param"] or (error["code"] if has_failed else "")
    is_named = text.startswith((begin, begin.removeprefix("body.")))  # a job's by the field of its POST
    return text if is_named else f"{begin}: {text}"
