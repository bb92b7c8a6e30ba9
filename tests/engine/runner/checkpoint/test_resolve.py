"""What may be named as a model, and what is said of what may not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.models.gguf_files import tiny_llama, write_gguf
from transformers import AutoModelForCausalLM

from millstream_worker.engine.runner.checkpoint.checkpoint import Checkpoint, CheckpointError, resolve


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small checkpoint in two shards."""
    path = tmp_path / "tiny"
    tiny_llama().save_pretrained(path, max_shard_size="200KB")
    return path


def found(model: str | Path, cache: Path) -> Checkpoint:
    return resolve(str(model), str(cache), lambda message: None)


def refusal(model: str | Path, cache: Path) -> str:
    with pytest.raises(CheckpointError) as refused:
        found(model, cache)
    return str(refused.value)


def test_a_folder_is_taken_as_it_is(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(list(folder.glob("*.safetensors"))) > 1
    assert found(folder, tmp_path) == Checkpoint(folder, "tiny", folder, folder)
    monkeypatch.chdir(folder)
    assert found(".", tmp_path).name == "tiny"


def test_a_gguf_file_is_converted_and_told(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "small.model.gguf", tiny_llama())
    told: list[str] = []
    checkpoint = resolve(str(file), str(tmp_path / "cache"), told.append)

    assert checkpoint.name == "small.model"
    assert checkpoint.folder.is_relative_to(tmp_path / "cache")
    assert AutoModelForCausalLM.from_pretrained(checkpoint.folder).num_parameters() > 0
    assert len(told) == 1
    assert "small.model.gguf" in told[0]


def test_a_hub_id_is_found_in_the_hub_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    revision = "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "hub" / "models--someone--tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text(revision)
    (cached / "snapshots").mkdir()
    folder.rename(cached / "snapshots" / revision)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    checkpoint = found("someone/tiny", tmp_path)
    assert checkpoint.name == "someone/tiny"
    assert checkpoint.folder == cached / "snapshots" / revision


@pytest.mark.parametrize(
    "model", ["someone/tiny", "tiny", "someone/tiny/small.gguf", "a/b/c/d", "no such model"]
)
def test_what_is_neither_here_nor_on_the_hub(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = refusal(model, tmp_path)

    assert repr(model) in message
    assert "hub" in message
    assert "\n" not in message


def test_what_is_not_there_or_is_no_model(tmp_path: Path) -> None:
    assert "no model" in refusal("", tmp_path)
    for model in ("./missing", "/missing/folder", "~/missing-model.gguf"):
        assert "no such file or folder" in refusal(model, tmp_path)
    fake = tmp_path / "fake.gguf"
    fake.write_bytes(b"GGUF" + b"\0" * 100)
    assert str(fake) in refusal(tmp_path, tmp_path), "a folder that holds only such a file points to it"
    assert "fake.gguf" in (message := refusal(fake, tmp_path / "cache"))
    assert "no GGUF file that transformers can read" in message


def test_pickled_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    for file in folder.glob("model*"):
        file.unlink()
    (folder / "pytorch_model.bin").touch()
    message = refusal(folder, tmp_path)

    assert "pytorch_model.bin" in message
    assert "safetensors" in message
    assert "name the folder" in refusal(folder / "pytorch_model.bin", tmp_path)


def test_broken_folders(folder: Path, tmp_path: Path) -> None:
    shard, *_ = sorted(folder.glob("*.safetensors"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    assert f"{shard.name} is no whole safetensors file" in refusal(folder, tmp_path)

    shard.unlink()
    assert f"names {shard.name}, which is missing" in refusal(folder, tmp_path)

    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": ["nonsense"]}))
    assert "model.safetensors.index.json cannot be read" in refusal(folder, tmp_path)

    (folder / "config.json").write_text("{}")
    assert "no model_type" in refusal(folder, tmp_path)

    (folder / "config.json").write_text("{")
    assert "config.json cannot be read" in refusal(folder, tmp_path)

    (folder / "config.json").unlink()
    assert "no config.json" in refusal(folder, tmp_path)


def test_no_weights_at_all(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert "no *.safetensors" in refusal(tmp_path, tmp_path)

    save_file({"weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    assert found(tmp_path, tmp_path).folder == tmp_path
