"""The files of `millstream batch run`: the place of its rows, checks of input and output, and a copy of
an input that can be read only once.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import BinaryIO

from millstream.batch.files.input_file import InputFile
from millstream.batch.files.journal import Journal
from millstream.batch.files.paths import RunPaths
from millstream.batch.files.rowfile import WriteFailed, sync_folder
from millstream.cli.display.terminal import say
from millstream.errors import InvalidRequest

STANDARD = Path("-")  # input or output


def place_of(out: Path, journal_file: Path | None) -> Path:
    """The file that keeps the run's rows."""
    if out != STANDARD and journal_file is not None:
        raise InvalidRequest("--journal", str(journal_file), "is for -o -; another OUT keeps the rows itself")
    if out != STANDARD:
        return out
    if journal_file is None:
        problem = "needs --journal FILE: it keeps the rows, so that an interrupted run can go on"
        raise InvalidRequest("--output", str(out), problem)
    if journal_file == STANDARD:
        raise InvalidRequest("--journal", str(journal_file), "names no file; the rows are kept in one")
    return journal_file


def check_input(source: Path, out: Path) -> None:
    """Raise before OUT is created."""
    place = RunPaths(out)
    if source != STANDARD:
        with InputFile(source):
            pass
    try:
        place.check()
        if source == STANDARD:
            return
        for path in (place.out, place.rows, place.errors, place.run_file):
            if path.exists() and path.samefile(source):
                raise InvalidRequest("--output", str(out), f"{path} is the input; choose another file")
    except OSError as error:  # a name that no file can have
        raise InvalidRequest("--output", str(error.filename or out), str(error.strerror)) from error


def spooled(journal: Journal) -> Path:
    say(f"standard input is kept in {journal.spool} until the run has ended")
    spool(sys.stdin.buffer, journal.spool)
    return journal.spool


def spool(stream: BinaryIO, path: Path) -> None:
    """Copy the whole stream to the path, which appears complete or not at all.

    An empty stream leaves the copy of an earlier run in place. Raises WriteFailed.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            shutil.copyfileobj(stream, file)
            file.flush()
            os.fsync(file.fileno())
        if part.stat().st_size or not path.exists():
            part.replace(path)
            sync_folder(path.parent)
        part.unlink(missing_ok=True)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise WriteFailed(f"{path} cannot be written: {error.strerror}") from error
