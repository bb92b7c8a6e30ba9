"""The files of a batch run on Valkey; its input has 60 lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.batch_files import BatchFiles, documents
from support.servers.servers import Server


@pytest.fixture
def batch(valkey: Server, tmp_path: Path) -> BatchFiles:
    files = BatchFiles(valkey, tmp_path)
    files.write(*documents(60))
    return files
