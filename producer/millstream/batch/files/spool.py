"""An input that can be read once only, kept beside OUT so that a run over it can be taken up again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import BinaryIO

from millstream.batch.files.rowfile import WriteFailed, sync_folder


def spool(stream: BinaryIO, path: Path) -> None:
    """Copy all of the stream to the path, at once: what is there under this name is whole.

    A stream without a byte leaves what an earlier run has put there. Raises WriteFailed.
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
