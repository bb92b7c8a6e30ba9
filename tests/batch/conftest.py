"""The files of a batch run on Valkey."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.batch_files import BatchFiles
from support.servers.servers import Server


@pytest.fixture
def place(valkey: Server, tmp_path: Path) -> BatchFiles:
    return BatchFiles(valkey, tmp_path)
