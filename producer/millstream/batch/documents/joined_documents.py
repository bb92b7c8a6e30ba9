"""Joins the answers of pages to documents: one text file for each, its pages in their order."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millstream.batch.files.input_file import InputFile
from millstream.batch.files.paths import RunPaths
from millstream.batch.files.rowfile import WriteFailed, replaced_file
from millstream.errors import InvalidRequest
from millstream.openai.answer_body import first_text

_PAGE = re.compile(r"^(?P<name>.+)#page=(?P<page>[0-9]{1,7})$", re.DOTALL)
NO_ROW = "no_row"  # of a page between others, which the run has not answered yet, or IN never had


class JoinedDocuments:
    """`failed`: the pages of each document that have no answer, with the code of the reason; a document
    without pages has page 0.
    """

    def __init__(self, out: Path) -> None:
        """Reads OUT and its error file. Raises InvalidRequest."""
        self.failed: dict[str, dict[int, str]] = defaultdict(dict)
        self._texts: dict[str, dict[int, str]] = defaultdict(dict)
        for row in _rows(out):
            if not row.get("response"):
                problem = "has rows of errors alone; give the run's output"
                raise InvalidRequest("--join", str(out), problem)
            name, page = _place(row)
            self._texts[name][page] = first_text(row["response"]["body"]) or ""
        errors = RunPaths(out).errors
        for row in _rows(errors) if errors.exists() else ():
            name, page = _place(row)
            if page not in self._texts[name]:
                self.failed[name][page] = str(row["error"]["code"])
        for name, texts in self._texts.items():
            failed = self.failed[name]
            last = max([*texts, *failed])
            failed |= {page: NO_ROW for page in range(1, last) if page not in texts and page not in failed}

    def write(self, into: Path) -> list[Path]:
        """Write all; the files. Raises InvalidRequest for a name that leads elsewhere, WriteFailed."""
        targets = {name: _target(into, name) for name in self._texts}
        for name, target in targets.items():
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with replaced_file(target) as file:
                    file.write(self._text(name).encode("utf-8", "backslashreplace"))
            except OSError as error:
                raise WriteFailed(f"{target} cannot be written: {error.strerror}") from error
        return list(targets.values())

    def _text(self, name: str) -> str:
        texts = dict(self._texts[name])
        for page, code in self.failed[name].items():
            shown = code if code.isidentifier() else "error"
            texts[page] = f"<!-- page {page} has no answer ({shown}) -->"
        return "\n\n".join(texts[page].strip() for page in sorted(texts)) + "\n"


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with InputFile(path) as lines:
        for line in lines:
            try:
                row = json.loads(line.data or b"")
                if not isinstance(row["custom_id"], str | None) or not (
                    row["error"] or row["response"]["body"]
                ):
                    raise ValueError("another file")
            except (ValueError, KeyError, TypeError):
                problem = f"line {line.number} is no row of a batch run; give the run's output"
                raise InvalidRequest("--join", str(path), problem) from None
            if row["custom_id"] is not None:  # it was no line of a page
                yield row


def _place(row: dict[str, Any]) -> tuple[str, int]:
    found = _PAGE.match(row["custom_id"])
    return (found["name"], int(found["page"])) if found else (row["custom_id"], 0)


def _target(into: Path, name: str) -> Path:
    try:
        target = (into / f"{name}.md").resolve()
    except (OSError, ValueError, RuntimeError):
        target = Path()
    if not target.is_relative_to(into.resolve()):
        problem = f"names a file that is not below {into}; change the line's custom_id"
        raise InvalidRequest("custom_id", name, problem)
    return target
