"""Whether a run has anything left to submit: told before a server or a model is started for it."""

from __future__ import annotations

from millstream.batch.faults import LineFault
from millstream.batch.journal import Journal
from millstream.batch.lines import InputFile, Line
from millstream.batch.rows import custom_id_of, parse, read_row
from millstream.wire.keys import Lane


def anything_left(source: InputFile, journal: Journal) -> bool:
    """Reads no further than to the first line that a worker has to answer."""
    return any(_needs_answer(line, journal) for line in source)


def _needs_answer(line: Line, journal: Journal) -> bool:
    if line.data is None:
        return False
    try:
        fields = parse(line.data)
        custom_id = custom_id_of(fields)
        if journal.has_id(custom_id):
            return False
        read_row(line.number, custom_id, fields, lane=Lane.BATCH, tenant="")
    except LineFault:
        return False
    return True
