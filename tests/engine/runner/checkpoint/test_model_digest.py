"""The model digest: equal for copies, another one for whatever answers otherwise."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.models.gguf_files import tiny_llama, write_gguf

from millstream_worker.engine.runner.checkpoint.checkpoint import resolve
from millstream_worker.engine.runner.checkpoint.model_digest import digest_of

WEIGHTS = "model.safetensors"


def digest(model: Path, cache: Path) -> str:
    return digest_of(resolve(str(model), str(cache), lambda message: None))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "tiny"
    tiny_llama().save_pretrained(path)
    (path / "tokenizer.json").write_text('{"model": {}}')
    (path / "tokenizer_config.json").write_text('{"chat_template": "a"}')
    return path


def test_copies_and_other_splits_and_names_have_the_same_digest(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    split = shutil.copytree(folder, tmp_path / "split")
    (split / WEIGHTS).unlink()
    tiny_llama().save_pretrained(split, max_shard_size="100KB")
    assert len(list(split.glob("*.safetensors"))) > 1
    config = json.loads((copy / "config.json").read_text())
    changed = config | {"transformers_version": "0.0", "dtype": "float16", "use_cache": False}
    (copy / "config.json").write_text(json.dumps(changed))
    assert digest(folder, tmp_path) == digest(copy, tmp_path) == digest(split, tmp_path)
    assert len(digest(folder, tmp_path)) == 32


def _tuned(folder: Path) -> None:
    """Only the smallest weights: a norm's."""
    weights = load_file(folder / WEIGHTS)
    name = min(weights, key=lambda name: (weights[name].numel(), name))
    weights[name] += torch.full_like(weights[name], 0.01)
    save_file(weights, folder / WEIGHTS, {"format": "pt"})


def _config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))


CHANGES: dict[str, Callable[[Path], object]] = {
    "weights": _tuned,
    "configuration": _config,
    "tokenizer": lambda folder: (folder / "tokenizer.json").write_text('{"model": {"a": 1}}'),
    "template": lambda folder: (folder / "tokenizer_config.json").write_text('{"chat_template": "b"}'),
    "template of its own": lambda folder: (folder / "chat_template.jinja").write_text("b"),
    "precision": lambda folder: tiny_llama().to(torch.bfloat16).save_pretrained(folder),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_answers_otherwise_has_another_digest(
    folder: Path, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    before = digest(folder, tmp_path)
    change(folder)
    assert digest(folder, tmp_path) != before


def test_a_gguf_file_is_known_by_its_content(tmp_path: Path) -> None:
    first = write_gguf(tmp_path / "first.gguf", tiny_llama())
    copy = shutil.copy(first, tmp_path / "copy.gguf")
    other = write_gguf(tmp_path / "other.gguf", tiny_llama(seed=1))
    same, cache = digest(first, tmp_path / "cache"), tmp_path / "other cache"
    assert digest(Path(copy), cache) == same
    assert digest(other, cache) != same


def test_a_large_checkpoint_is_read_in_samples(folder: Path, tmp_path: Path) -> None:
    """Of 20 GB in a file with holes, a megabyte."""
    size = 2**26
    tensors = {
        f"layer.{number}": {
            "dtype": "U8",
            "shape": [size],
            "data_offsets": [number * size, (number + 1) * size],
        }
        for number in range(300)
    }
    header = json.dumps(tensors).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(folder / WEIGHTS, 8 + len(header) + 300 * size)
    checkpoint = resolve(str(folder), str(tmp_path), lambda message: None)
    before = read_bytes()
    assert digest_of(checkpoint)
    assert read_bytes() - before < 2**20


def read_bytes() -> int:
    """What this process has read from files."""
    [line] = [line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("rchar")]
    return int(line.split()[1])
