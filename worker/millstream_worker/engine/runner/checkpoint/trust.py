"""Refuses code that is not there by this user, or by root."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def refuse_if_written_by_others(*paths: Path) -> None:
    """Raises OSError if somebody else can have put there what is there, or where that cannot be seen."""
    for path in paths:
        facts = path.stat()
        if facts.st_uid not in (os.geteuid(), 0) or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError(f"{path} can be written by others, so that what is in it is not run")
