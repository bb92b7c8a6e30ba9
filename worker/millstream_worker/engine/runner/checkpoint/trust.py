"""Tells if code in a folder may be run: it has to be there by this user, or by root."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def written_by_others(path: Path) -> bool:
    """True if somebody else can have put there what is there. Raises OSError where it cannot be seen."""
    facts = path.stat()
    return facts.st_uid not in (os.geteuid(), 0) or bool(facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
