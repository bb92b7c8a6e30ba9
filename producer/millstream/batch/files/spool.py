"""A copy, beside OUT, of an input that can be read only once, so that an interrupted run can be continued."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import BinaryIO

from millstream.batch.files.rowfile import WriteFailed, sync_folder


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
