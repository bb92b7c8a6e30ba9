"""The engine as a process: what it does before it imports torch, and how it leaves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.frames import LoadFailed
from millstream_worker.engine_link.link import EngineLink, Exit

ENGINE = [sys.executable, "-m", "millstream_worker.engine"]
CHECKPOINT = {"config.json": '{"model_type": "llama"}', "model.safetensors": "\x02" + "\0" * 7 + "{}"}
# Stands in for torch. Its module stays in `sys`, to be taken apart with the interpreter.
TORCH = """
import atexit, sys
from pathlib import Path
here = Path(__file__).parent
class Kept:
    def __del__(self):
        (here / "taken-apart").touch()
sys.kept = Kept()
atexit.register((here / "flushed").touch)
raise ImportError("no torch here")
"""


async def run(monkeypatch: pytest.MonkeyPatch, folder: Path, model: str) -> tuple[list[str], Exit]:
    """What the engine says of a model that it cannot load, and how it ends."""
    monkeypatch.setenv("PYTHONPATH", str(folder))
    link = await EngineLink.start(ENGINE, EngineConfig(model))
    said = [frame.message async for frame in link.frames() if isinstance(frame, LoadFailed)]
    return said, await link.reap()


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("nobody/nothing-of-that-name", "nor such a model in the hub's cache"),
        (str(Path(__file__).parent), "the folder has no config.json"),
    ],
)
async def test_a_missing_model_is_reported_before_torch_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, says: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "torch.py").write_text(TORCH)
    [said], ended = await run(monkeypatch, tmp_path, model)
    assert says in said
    assert ended.code == 1
    assert not (tmp_path / "flushed").exists()


async def test_an_engine_exits_after_flushing_without_teardown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    for name, text in CHECKPOINT.items():
        (tmp_path / name).write_text(text)
    said, ended = await run(monkeypatch, tmp_path, str(tmp_path))
    assert (said, ended.code) == ([], 1)
    assert (tmp_path / "flushed").exists()
    assert not (tmp_path / "taken-apart").exists()
