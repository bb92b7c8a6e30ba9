"""Files that ask for more than a checkpoint of their size can have are refused before anything is made of
them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.models.checkpoints import MECHANISMS
from support.models.spelling import spelling_checkpoint

from millstream_worker.engine.runner.checkpoint.checkpoint import CheckpointError, resolve
from millstream_worker.engine.runner.checkpoint.size_bounds import check_config

DOUBLED = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
INSERTED = {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "ab"}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spelling_checkpoint(tmp_path_factory.mktemp("good"))


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "bad"))


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as refused:
        resolve(str(folder), "", lambda message: None)
    message = str(refused.value)
    assert message.startswith(f"model '{folder}': ")
    assert "anew" in message
    return message


def change(file: Path, edit: Callable[[Any], object]) -> None:
    form = json.loads(file.read_text())
    edit(form)
    file.write_text(json.dumps(form))


@pytest.mark.parametrize("case", sorted(MECHANISMS))
def test_checkpoints_are_taken(case: str, checkpoint: Callable[[str], Path]) -> None:
    assert resolve(str(checkpoint(case)), "", lambda message: None).folder == checkpoint(case)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers 1000000000, hidden_size 32"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, and no model has fewer than 1"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"vocab_size": 10**10}, "hidden_size 32, vocab_size 10000000000: a model of this size has at least"),
        ({"hidden_size": 10**9}, "hidden_size 1000000000"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"head_dim": 10**6}, "num_hidden_layers 2, hidden_size 32, head_dim 1000000"),
        ({"intermediate_size": 10**12}, "intermediate_size 1000000000000"),
        ({"num_labels": 10**9}, "num_labels 1000000000"),
        ({"text_config": {"num_hidden_layers": 10**9}}, "num_hidden_layers 1000000000: a model of this size"),
    ],
    ids=str,
)
def test_sizes_beyond_the_weights_are_refused(fields: dict[str, Any], says: str, folder: Path) -> None:
    change(folder / "config.json", lambda config: config.update(fields))
    message = refusal(folder)
    assert "config.json: " in message
    assert says in message


def test_models_that_are_around_have_files_for_their_sizes() -> None:
    """Also at the fewest bits that anybody quantises to."""
    for weights, config in (
        (671e9, {"hidden_size": 7168, "num_hidden_layers": 61, "vocab_size": 129280,
                 "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
                 "num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "v_head_dim": 128,
                 "num_nextn_predict_layers": 1}),
        (30e9, {"hidden_size": 2048, "num_hidden_layers": 48, "vocab_size": 151936, "intermediate_size": 6144,
                "moe_intermediate_size": 768, "num_experts": 128, "max_window_layers": 48, "head_dim": 128}),
        (0.27e9, {"hidden_size": 640, "num_hidden_layers": 18, "vocab_size": 262144,
                  "intermediate_size": 2048}),
        (0.124e9, {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}),
        (7.6e9, {"embedding_length": 3584, "block_count": 28, "feed_forward_length": 18944,
                 "attention.head_count": 28, "context_length": 1_010_000}),
    ):  # fmt: skip
        check_config({"model_type": "any", **config}, int(weights * 1.58 / 8))


def test_files_of_hundreds_of_megabytes_are_not_read(folder: Path) -> None:
    for name, size in (
        ("tokenizer.json", 300 * 2**20),
        ("config.json", 5 * 2**20),
        ("generation_config.json", 5 * 2**20),
        ("chat_template.jinja", 2 * 2**20),
    ):
        with (folder / name).open("ab") as file:
            file.truncate(size)  # without data on the disk
        assert f"{name} has {size} bytes, and may have" in refusal(folder)
        (folder / name).unlink()
        (folder / name).write_text('{"model_type": "llama"}')


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("depth", [65, 100_000])
def test_what_is_nested_too_deep_is_refused(name: str, depth: int, folder: Path) -> None:
    (folder / name).write_text('{"model_type": "llama", "a": ' + '{"a":' * depth + "1" + "}" * (depth + 1))
    assert f"{name} is nested " in refusal(folder)


def test_ids_far_beyond_the_tokens_are_refused(folder: Path) -> None:
    change(folder / "tokenizer.json", lambda form: form["model"]["vocab"].update(zzzz=4_000_000_000))
    assert "tokenizer.json: the token 'zzzz' has the id 4000000000, far beyond its" in refusal(folder)
    vocabulary = {"a": 0, "b": 10**9}
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    assert "vocab.json: the token 'b' has the id 1000000000" in refusal(folder)


@pytest.mark.parametrize(("step", "count"), [(DOUBLED, 40), (INSERTED, 9)], ids=["doubled", "inserted"])
def test_a_normalizer_without_bounds_is_refused(step: dict[str, Any], count: int, folder: Path) -> None:
    twice = {"type": "Sequence", "normalizers": [step] * count}
    change(folder / "tokenizer.json", lambda form: form.update(normalizer=twice))
    assert "tokenizer.json: its normalizer can make a text" in refusal(folder)
    usual = {"type": "Sequence", "normalizers": [{"type": "NFC"}, step]}
    change(folder / "tokenizer.json", lambda form: form.update(normalizer=usual))
    assert resolve(str(folder), "", lambda message: None).folder == folder
