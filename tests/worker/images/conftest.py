"""A checkpoint that reads images, and workers that serve it with an engine that answers with what it saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.models.vision_checkpoints import VisionCheckpoint, build
from support.servers.servers import Server
from support.workers.image_engine import COMMAND, LOG
from support.workers.work import Work

SHARED: dict[str, Any] = {"engine_command": COMMAND, "image_processes": 2}


@pytest.fixture(scope="session")
def idefics(tmp_path_factory: pytest.TempPathFactory) -> VisionCheckpoint:
    return build("idefics3", tmp_path_factory.mktemp("idefics3"))


@pytest.fixture(scope="session")
def checkpoint(idefics: VisionCheckpoint) -> Path:
    return idefics.folder


@pytest.fixture
def seeing(server: Server, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    """Workers that read images; a line for each frame about images is in `frames`."""
    monkeypatch.setenv(LOG, str(tmp_path / "frames"))
    return Work(server, checkpoint, tmp_path, **SHARED)
