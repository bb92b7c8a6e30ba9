"""Joins the answers of pages to documents: one text file for each, its pages in their order."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millstream.batch.files.input_file import InputFile
from millstream.batch.files.paths import RunPaths
from millstream.batch.files.rowfile import replaced_file, written
from millstream.batch.files.runfile import source_of
from millstream.batch.media.media_folder import PAGE
from millstream.batch.rows.batch_lines import custom_id_of, parse
from millstream.batch.rows.faults import LineFault
from millstream.batch.rows.line_splitter import InputLine
from millstream.errors import InvalidRequest
from millstream.openai.answer_body import first_text

NO_ROW = "no_row"  # of a page that the run has not answered yet; of one between others, perhaps IN has none


class JoinedDocuments:
    """`failed`: the pages of each document that have no answer, with the code of the reason; a document
    without pages has page 0. `torn`: the files whose last row is torn, and left out. `has_lines` False: the
    run's lines are not there, so that a page behind the last row of its document may be missing untold.
    """

    def __init__(self, out: Path, lines: Path | None = None) -> None:
        """Reads OUT, its error file and the run's lines: `lines`, or those that its run file names. Raises
        InvalidRequest.
        """
        self.failed: dict[str, dict[int, str]] = defaultdict(dict)
        self.torn: list[Path] = []
        self._texts: dict[str, dict[int, str]] = defaultdict(dict)
        place = RunPaths(out)
        for row in self._rows(place.rows if place.rows.exists() else out):
            if not row.get("response"):
                problem = "has rows of errors alone; give the run's output"
                raise InvalidRequest("--join", str(out), problem)
            name, page = _place(row["custom_id"])
            self._texts[name][page] = first_text(row["response"]["body"]) or ""
        for row in self._rows(place.errors) if place.errors.exists() else ():
            name, page = _place(row["custom_id"])
            if page not in self._texts[name]:
                self.failed[name][page] = str(row["error"]["code"])
        source = lines or _lines_of(place)
        self.has_lines = source is not None
        for name, page in _places(source) if source is not None else ():
            if page not in self._texts.get(name, ()):  # a document without any row is told, and not written
                self.failed[name].setdefault(page, NO_ROW)
        for name, texts in self._texts.items():
            failed = self.failed[name]
            last = max([*texts, *failed])
            failed |= {page: NO_ROW for page in range(1, last) if page not in texts and page not in failed}

    def _rows(self, path: Path) -> Iterator[dict[str, Any]]:
        """A run that was killed, or goes on now, may have written a part of its last row."""
        with InputFile(path) as lines:
            for line in lines:
                if (row := _row(line)) is None and not _is_torn(line):
                    problem = f"line {line.number} is no row of a batch run; give the run's output"
                    raise InvalidRequest("--join", str(path), problem)
                if row is None:
                    self.torn.append(path)
                elif row["custom_id"] is not None:  # it was no line of a page
                    yield row

    def write(self, into: Path) -> list[Path]:
        """Write all; the files. Raises InvalidRequest for a name that leads elsewhere, WriteFailed."""
        targets = {name: _target(into, name) for name in self._texts}
        for name, target in targets.items():
            with written(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                with replaced_file(target) as file:
                    file.write(self._text(name).encode("utf-8", "backslashreplace"))
        return list(targets.values())

    def _text(self, name: str) -> str:
        texts = dict(self._texts[name])
        for page, code in self.failed[name].items():
            shown = code if code.isidentifier() else "error"
            texts[page] = f"<!-- page {page} has no answer ({shown}) -->"
        return "\n\n".join(texts[page].strip() for page in sorted(texts)) + "\n"


def _row(line: InputLine) -> dict[str, Any] | None:
    """None: it is none of a batch run."""
    try:
        row: dict[str, Any] = json.loads(line.data or b"")
        is_row = isinstance(row["custom_id"], str | None) and (row["error"] or row["response"]["body"])
    except (ValueError, KeyError, TypeError):
        return None
    return row if is_row else None


def _is_torn(line: InputLine) -> bool:
    """True for a last line that a row may begin with."""
    if line.ended or not line.data or not line.data.startswith(b"{"):
        return False
    try:
        json.loads(line.data)
    except ValueError:
        return True
    return False


def _lines_of(place: RunPaths) -> Path | None:
    """The run's input, or the copy of it that a run of standard input has until it ends; None: it is away."""
    named = source_of(place.run_file)
    return next((path for path in (place.spool, Path(named or "")) if path.is_file()), None)


def _places(source: Path) -> Iterator[tuple[str, int]]:
    """The pages of the lines that can be told."""
    with InputFile(source) as lines:
        for line in lines:
            with contextlib.suppress(LineFault):
                yield _place(custom_id_of(parse(line.data or b"")))


def _place(custom_id: str) -> tuple[str, int]:
    found = PAGE.match(custom_id)
    return (found["name"], int(found["page"])) if found else (custom_id, 0)


def _target(into: Path, name: str) -> Path:
    try:
        target = (into / f"{name}.md").resolve()
    except (OSError, ValueError, RuntimeError):
        target = Path()
    if not target.is_relative_to(into.resolve()):
        problem = f"names a file that is not below {into}; change the line's custom_id"
        raise InvalidRequest("custom_id", name, problem)
    return target
