"""Compares IN with OUT before anything is submitted, to find lines that changed since they were answered.

Without it, a continued run would silently leave old answers to new questions in OUT.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millstream.batch.files.input_file import InputFile
from millstream.batch.files.journal import Journal
from millstream.batch.files.runfile import identity, line_digest_of
from millstream.batch.order.beginnings import beginnings_of
from millstream.batch.order.line_order import LineOrder, OrderedPass
from millstream.batch.rows import row_digests
from millstream.batch.rows.batch_lines import digest_of, queue_of
from millstream.batch.rows.faults import FaultCode, FirstLines, LineFault
from millstream.batch.rows.line_findings import LineFindings, Models
from millstream.batch.rows.line_splitter import InputLine
from millstream.batch.rows.seen_ids import SeenIds
from millstream.batch.run.model_watch import OnChange
from millstream.batch.run.run_options import RunOptions
from millstream.errors import InvalidRequest
from millstream.openai.messages.image_parts import image_paths
from millstream.wire.state.queue_info import ModelIdentity

SHOWN_LINES = 5


class Survey:
    """One pass over IN. Collects findings and decides nothing."""

    def __init__(
        self, journal: Journal, options: RunOptions, served: Mapping[str, ModelIdentity] | None = None
    ) -> None:
        """`served`: the models that queues have now, of which the run has recorded one."""
        self.lines = 0  # that are not blank
        self.work = False  # there is a line that a worker has to run
        self.findings = LineFindings()  # about the lines that are run
        self.order: LineOrder | None = None  # in which they are sent; None: that of the file
        self.version: tuple[int, ...] = ()  # of IN, whose order it is
        self._models, self._changed_models = Models(), Models()
        self.redo = False  # changed lines are run again
        self.named = ""  # the name recorded as IN
        # keys of the rows that are about to be removed from the error file
        self.retried = journal.failures(failed=options.retry_failed, incomplete=options.retry_incomplete)
        self.changed: set[bytes | int] = set()  # keys of rows, see Journal
        self.changed_lines: list[int] = []  # the first ones
        self.mended: set[bytes | int] = set()  # the same, of lines that were invalid
        self.moved: set[str] = set()  # own ids of jobs under way that another model or queue would get now
        self.found = 0  # lines that have a row
        # jobs to cancel at the end: of lines that IN no longer has, or that now go elsewhere
        self.left = dict(journal.notes.left) | dict(journal.notes.under_way)
        begun = journal.notes.begun
        self.other_model = begun.model is not None and journal.model not in (None, begun.model)
        self.other_queue = begun.source is not None and begun.queue != options.queue
        self.served = served or {}
        self.replaced: Counter[str] = Counter()  # lines of queues that have another model than before
        self._before = journal.notes.models
        self._begun, self._options = begun, options
        kept = {key: mark for key, mark in journal.failed.items() if key not in self.retried}
        self._rows = kept | journal.answered
        self._refused = journal.refused
        self._lines = {line: mark for line, mark in journal.lines.items() if line not in self.retried}
        self._under_way = {line_digest_of(own_id): own_id for own_id in journal.notes.under_way}
        self._seen = SeenIds()
        self._named = 0  # lines whose custom_id has a row
        self._stale_lines = set(self._lines)

    @property
    def rows(self) -> int:
        return len(self._rows) + len(self._lines)

    @property
    def models(self) -> Mapping[str, int]:
        """Lines without a row, counted by their body.model; "": none."""
        return self._models.counts + self._changed_models.counts if self.redo else self._models.counts

    @property
    def dropped(self) -> set[bytes | int]:
        """Keys of rows to remove: their lines are run again."""
        return self.mended | self.changed if self.redo else self.mended

    @property
    def missing(self) -> int:
        """Number of rows that belong to no line of IN."""
        return len(self._rows) - self._named + len(self._stale_lines)

    def take(self, source: InputFile) -> None:
        """Raises InvalidRequest if IN cannot be read to its end, or is no JSONL."""
        first = FirstLines(str(source.path))
        ordered = None if self._options.in_order else OrderedPass(whole=source.is_plain)
        self.version = source.version
        for line in source:
            self.lines += 1
            first.take(line.number, line.data, self._look(line, ordered))
        self._seen = SeenIds()  # nobody asks any more
        self.order = ordered.end() if ordered else None

    def _look(self, line: InputLine, ordered: OrderedPass | None) -> LineFault | None:
        """Returns the fault of a line that has no custom_id of its own."""
        self._stale_lines.discard(line.number)
        fields: Mapping[str, Any] = {}
        try:
            custom_id, fields = self._options.fields_of(line)
            key = identity(custom_id)
            if not self._seen.add_digest(key):
                if ordered:
                    ordered.repeats(line.number)
                raise LineFault(FaultCode.DUPLICATE_CUSTOM_ID, "", "custom_id")
        except LineFault as fault:
            self._look_at_nameless(line, fault)
            return fault
        finally:
            if ordered:
                ordered.take(line.number, line.place, len(line.data or b""), beginnings_of(fields))
        if line.number in self._lines:  # it had no custom_id of its own then
            self._changes(line, line.number)
        if (mark := self._rows.get(key)) is None:
            self._look_at_new(line, custom_id, fields)
        else:
            self._look_at_known(line, custom_id, fields, mark)
        return None

    def _look_at_known(self, line: InputLine, custom_id: str, fields: Mapping[str, Any], mark: bytes) -> None:
        key = identity(custom_id)
        self._named += 1
        self.found += 1
        if not self._is_same(mark, line, custom_id, fields):
            self._changes(line, key)
            if key in self.mended:
                self._look_at_new(line, custom_id, fields)
            else:
                self._changed_models.add(fields)
                if self._options.on_change is OnChange.REDO:
                    self.findings.add(fields)

    def _look_at_nameless(self, line: InputLine, fault: LineFault) -> None:
        if (mark := self._lines.get(line.number)) is None:
            return
        self.found += 1
        same = (
            row_digests.of_raw(line.data) if line.data and row_digests.is_of_raw(mark) else _of_fault(fault)
        )
        if mark not in (same, row_digests.UNKNOWN):
            self._changes(line, line.number)

    def _look_at_new(self, line: InputLine, custom_id: str, fields: Mapping[str, Any]) -> None:
        self._models.add(fields)
        self.findings.add(fields)
        if self.work and not self._under_way:
            return
        try:
            row = self._options.row_of(line, custom_id, fields)
        except LineFault:
            return
        self.work = True
        if (own_id := self._under_way.get(row.digest)) is None:
            return
        elsewhere = self.other_model or self.left.get(own_id, row.queue) != row.queue
        if elsewhere or self._is_replaced(row.queue):
            self.moved.add(own_id)
        if self.left.get(own_id) == row.queue:
            del self.left[own_id]

    def _is_same(self, mark: bytes, line: InputLine, custom_id: str, fields: Mapping[str, Any]) -> bool:
        assert line.data is not None, "it was parsed"
        if mark == row_digests.UNKNOWN:
            return True
        if row_digests.is_of_raw(mark):
            return mark == row_digests.of_raw(line.data)
        try:
            if row_digests.is_of_job(mark):
                digest = digest_of(custom_id, fields, self._options.media)
                if not self._sees_files(line, fields["body"]):
                    return True  # a file that is away now has not changed: its answer stays
                return mark == row_digests.of_digest(digest) and not self._moved(fields)
            self._options.row_of(line, custom_id, fields)
        except LineFault as fault:
            return mark == _of_fault(fault)
        return False

    def _sees_files(self, line: InputLine, body: Mapping[str, Any]) -> bool:
        """True if all files can be looked at that an answered line names. Raises InvalidRequest if there is
        no folder of theirs: answers would be lost, or lines without one refused.
        """
        if self._options.media is not None:
            return self._options.media.sees(body)
        if not any(image_paths(body.get("messages"))):
            return True
        if self._options.on_change is OnChange.KEEP:
            return False
        problem = "was answered from files; give their folder (--media), or --keep-answers"
        raise InvalidRequest("media", None, f"line {line.number} {problem}")

    def _moved(self, fields: Mapping[str, Any]) -> bool:
        """True if another model would answer the line now."""
        named = queue_of(fields)
        queue = self._options.queue_of(named)
        if self.other_model or (self.other_queue and (self._begun.queue or named) != queue):
            return True
        return self._is_replaced(queue)

    def _is_replaced(self, queue: str) -> bool:
        """True if the model of a line's queue was replaced; counts the line then."""
        now = self.served.get(queue)
        if now is None or not now.is_other(self._before.get(queue)):
            return False
        self.replaced[queue] += 1
        return True

    def _changes(self, line: InputLine, key: bytes | int) -> None:
        if isinstance(key, int) or key in self._refused:
            self.mended.add(key)
            return
        self.changed.add(key)
        if len(self.changed_lines) < SHOWN_LINES and line.number not in self.changed_lines:
            self.changed_lines.append(line.number)


def _of_fault(fault: LineFault) -> bytes:
    return row_digests.of_fault(fault.code, fault.field)


def begin(
    source: Path,
    journal: Journal,
    options: RunOptions,
    *,
    named: str = "",
    served: Mapping[str, ModelIdentity] | None = None,
) -> Survey:
    """Compare IN with OUT; changes nothing there, see `BatchSession.prepare`.

    `named`: the name to record as IN if `source` is a copy. Raises InvalidRequest if lines have changed, or
    IN, queue or model are others, and `on_change` is "stop"; if IN is no JSONL; and if lines to run have
    unknown fields, and the run is strict about them.
    """
    survey = Survey(journal, options, served)
    with InputFile(source) as lines:
        survey.take(lines)
    survey.named = named or str(source.resolve())
    if options.on_change is not OnChange.KEEP:
        _refuse_other_input(survey, journal)
    if (survey.changed or survey.moved) and options.on_change is OnChange.STOP:
        raise _stopped(survey, journal, options, str(source))
    if options.strict_fields:
        refuse_unknown(survey.findings, str(source))
    if options.on_change is OnChange.REDO:
        survey.redo = True
        survey.work |= bool(survey.changed)
    return survey


def refuse_unknown(findings: LineFindings, source: str) -> None:
    """Raises InvalidRequest if lines have fields that nobody knows."""
    if told := findings.told_unread(unknown_only=True):
        raise InvalidRequest("IN", source, f"has unknown fields: {told}; mend or remove them")


def _refuse_other_input(survey: Survey, journal: Journal) -> None:
    if not survey.missing or not survey.lines:
        return
    begun = journal.notes.begun.source
    if survey.found and begun in (None, survey.named):
        return  # lines were removed from it
    shown = os.fsencode(begun or "").decode("utf-8", "backslashreplace")
    what = f"was begun with {shown}, and " if begun not in (None, survey.named) else ""
    raise InvalidRequest(
        "OUT",
        str(journal.out),
        f"{what}{survey.missing:,} of its {survey.rows:,} rows answer no line of this IN; choose another "
        "OUT, or --keep-answers to add to it",
    )


def _stopped(survey: Survey, journal: Journal, options: RunOptions, source: str) -> InvalidRequest:
    count, begun = len(survey.changed) + len(survey.moved), journal.notes.begun
    ways = "--redo-changed answers them anew, --keep-answers leaves them as they are, or choose another OUT"
    lines = "line was" if count == 1 else "lines were"
    answered = f"{count:,} {lines} answered {'or submitted ' if survey.moved else ''}so: {ways}"
    if survey.other_model:
        return InvalidRequest(
            "model", journal.model, f"{journal.out} was begun with {begun.model!s:.200}. {answered}"
        )
    if survey.replaced:
        queue, more = min(survey.replaced), len(survey.replaced) - 1
        now, before = survey.served[queue], journal.notes.models[queue]
        others = f" (and {more:,} more of its queues have another model)" if more else ""
        return InvalidRequest(
            "model", now.name, f"queue {queue!r} now has {now}, and had {before} before{others}. {answered}"
        )
    if survey.other_queue or survey.moved:
        was = begun.queue or "each line's own"
        return InvalidRequest(
            "queue", options.queue, f"{journal.out} was begun with another one ({was}). {answered}"
        )
    have = "line has changed since it was" if count == 1 else "lines have changed since they were"
    numbers = ", ".join(map(str, survey.changed_lines)) + (", …" if count > len(survey.changed_lines) else "")
    return InvalidRequest("IN", source, f"{count:,} {have} answered ({numbers}). {ways[0].upper()}{ways[1:]}")
