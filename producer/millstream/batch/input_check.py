"""Reads every line of IN as a run would, submits none, and keeps what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import nsmallest

from millstream.batch.files.input_file import InputFile
from millstream.batch.rows.batch_lines import BatchLine
from millstream.batch.rows.faults import FirstLines, LineFault, duplicate
from millstream.batch.rows.line_findings import LineFindings, Models
from millstream.batch.rows.line_splitter import InputLine
from millstream.batch.rows.seen_ids import SeenIds
from millstream.batch.run.run_options import RunOptions

SHOWN_LINES = 20


@dataclass(frozen=True, slots=True, order=True)
class BadLine:
    """A line that would become an error row. `field`: the dotted path of what to change."""

    line: int
    code: str
    message: str
    field: str | None = None


class InputCheck:
    """Mutable. `bad` counts the lines that cannot run, of which `shown` has the first."""

    def __init__(self, options: RunOptions) -> None:
        self.lines = 0
        self.bad = 0
        self.shown: list[BadLine] = []
        self.findings = LineFindings()
        self._models = Models()
        self._options = options

    @property
    def models(self) -> dict[str, int]:
        """Lines that can run, counted by their body.model; "": none."""
        return dict(self._models.counts)

    def take(self, source: InputFile, named: str) -> None:
        """Check all lines. Raises what `rows` raises."""
        for _ in self.rows(source, named):
            pass

    def rows(self, source: InputFile, named: str) -> Iterator[BatchLine]:
        """The lines that can run. `named`: IN as it was given. Raises InvalidRequest if it cannot be read to
        its end, or is no JSONL.
        """
        first = FirstLines(named)
        seen = SeenIds()
        for line in source:
            self.lines += 1
            wrong: LineFault | None = None
            try:
                yield self._check(line, seen)
            except LineFault as fault:
                wrong = fault
                self.refuse(line.number, fault)
            first.take(line.number, line.data, wrong)

    def refuse(self, line: int, fault: LineFault) -> None:
        """Count one line that cannot run."""
        self.bad += 1
        found = BadLine(line, str(fault.code), fault.message, fault.field)
        self.shown = nsmallest(SHOWN_LINES, [*self.shown, found], key=lambda bad: bad.line)

    def _check(self, line: InputLine, seen: SeenIds) -> BatchLine:
        custom_id, fields = self._options.fields_of(line)
        if not seen.add(custom_id):
            raise duplicate(custom_id)
        try:
            row = self._options.row_of(line, custom_id, fields)
        except LineFault:
            self.findings.note(fields)
            raise
        self.findings.add(fields)
        self._models.add(fields)
        return row
