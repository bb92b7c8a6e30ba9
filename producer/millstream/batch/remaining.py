"""What a run has before it: told from its files, before a server or a model is started for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millstream.batch.faults import LineFault
from millstream.batch.journal import Journal
from millstream.batch.lines import InputFile, Line
from millstream.batch.models import Models
from millstream.batch.rows import custom_id_of, parse, read_row
from millstream.wire.keys import Lane


@dataclass(frozen=True, slots=True)
class Remaining:
    lines: int  # of the whole file, without blank ones
    work: bool  # whether a worker has any of them to answer
    models: Mapping[str, int]  # of lines without a row, by what their body.model says; "": nothing


def look_ahead(source: InputFile, journal: Journal) -> Remaining:
    """Reads the whole file, and each line no closer than it must."""
    lines, work, models = 0, False, Models()
    for line in source:
        lines += 1
        fields = _unanswered(line, journal)
        if fields is not None:
            work = work or _is_good(line.number, fields)
            models.add(fields)
    return Remaining(lines, work, models.counts)


def _unanswered(line: Line, journal: Journal) -> Mapping[str, Any] | None:
    """The line, if it can be read and has no row yet."""
    if line.data is None:
        return None
    try:
        fields = parse(line.data)
        return None if journal.has_id(custom_id_of(fields)) else fields
    except LineFault:
        return None


def _is_good(number: int, fields: Mapping[str, Any]) -> bool:
    try:
        read_row(number, custom_id_of(fields), fields, lane=Lane.BATCH, tenant="", queue="any")
    except LineFault:
        return False
    return True
