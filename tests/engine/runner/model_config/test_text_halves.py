"""Text halves of multimodal checkpoints beside the whole models, which transformers builds and computes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engine.planning import Segment, pack
from support.engine.serving import logits_of, runner_of, serve
from support.models.checkpoints import VOCABULARY, build, generate, logits, plain, quiet
from support.models.multimodal import WHOLES, build_whole, whole
from transformers import PreTrainedModel

from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.model.load import LoadedModel, load_model
from millstream_worker.engine.runner.model_config.config_file import load_config
from millstream_worker.engine.runner.model_config.model_types import FOREIGN, HALVES
from millstream_worker.engine.runner.model_config.support import UnsupportedModel, check
from millstream_worker.engine.runner.model_config.text_half import text_names

TOLERANCE = 5e-5  # of logits, which are of the order of 5
# Transformers computes delta rules chunk by chunk.
_DELTA_RULES = dict.fromkeys(("minicpmv4_6", "minicpmv4_7", "qwen3_5", "qwen3_5_moe"), 2e-4)
BLOCK = 4
BY_TIMM = "gemma3n"  # whose tower another library builds
_FAST = {
    "gemma3",
    "qwen3_vl",
    "paddleocr_vl",
}  # names under the whole's, names beside a tower's; each a twin or not
TIERED = [pytest.param(case, marks=() if case in _FAST else pytest.mark.slow) for case in WHOLES]


def half(folder: Path) -> LoadedModel:
    with quiet():
        return load_model(str(folder), dtype=torch.float32, device=torch.device("cpu"), attention="torch")


def prompt(length: int, seed: int = 5) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(3, VOCABULARY) for _ in range(length)]


def distance(folder: Path, reference: PreTrainedModel | None = None) -> float:
    """Of the half's logits of a text, computed in two pieces, from a reference's: the whole's."""
    tokens = prompt(41)
    with quiet():
        want = logits(reference or whole(folder), tokens)
    runner, _ = runner_of(half(folder), blocks=20, block_size=BLOCK)
    pieces = [
        pack([Segment(0, tokens[start:end], start, [*range(11, 0, -1)], range(end - start))], BLOCK)
        for start, end in ((0, 17), (17, 41))
    ]
    got = torch.cat([logits_of(runner, piece) for piece in pieces])
    return float((got - want).abs().max())


def test_every_tested_half_has_a_case() -> None:
    assert {model_type for model_type, _ in WHOLES.values()} == HALVES - FOREIGN.keys() - {BY_TIMM}


@pytest.mark.parametrize("case", TIERED)
def test_a_text_half_has_the_logits_of_its_whole(case: str, tmp_path: Path) -> None:
    assert distance(build_whole(case, tmp_path)) < _DELTA_RULES.get(case, TOLERANCE)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("case", ["qwen2_vl", "gemma3"])
def test_a_head_is_tied_as_the_whole_says(case: str, tied: bool, tmp_path: Path) -> None:
    folder = build_whole(case, tmp_path, tie_word_embeddings=tied)
    assert distance(folder) < TOLERANCE
    model = half(folder).model
    same = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert same == tied


def test_a_half_is_found_in_several_files(tmp_path: Path) -> None:
    folder = build_whole("qwen2_vl", tmp_path, shard="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 3
    assert distance(folder) < TOLERANCE


@pytest.mark.parametrize(
    "case",
    ["qwen3_vl", *(pytest.param(case, marks=pytest.mark.slow) for case in ("gemma3", "gemma4", "mistral3"))],
)
def test_a_half_gives_the_tokens_of_its_whole(case: str, tmp_path: Path) -> None:
    folder = build_whole(case, tmp_path)
    shared = prompt(30)
    prompts = [shared + prompt(4, 1), shared + prompt(17, 2), shared + prompt(1, 3), prompt(90, 4), prompt(3)]
    with quiet():
        reference = whole(folder)
        want = [generate(reference, one, 10) for one in prompts]
    requests = [
        EngineRequest(handle, tuple(one), 10, SamplingSpec(temperature=0.0))
        for handle, one in enumerate(prompts)
    ]
    served = serve(half(folder), [*zip((0, 0, 1, 2, 2), requests, strict=True)], blocks=45, block_size=BLOCK)
    assert [served.tokens[handle] for handle in range(len(prompts))] == want
    assert served.stats.prefix_hit_total > 0


def test_the_log_tells_what_of_a_checkpoint_is_not_loaded(tmp_path: Path) -> None:
    loaded = half(build_whole("gemma3", tmp_path))
    left = "text half of Gemma3ForConditionalGeneration: "
    (note,) = [note for note in loaded.notes if note.startswith(left)]
    assert note.endswith(" weights of its other parts are not loaded")
    assert loaded.architecture == "Gemma3ForCausalLM"


def disguised(case: str, folder: Path, prefix: str, tower: str, config: dict[str, Any]) -> Path:
    """A plain text model as it is stored in a whole that is not built here. `prefix`: of its body's names."""
    text = build(case, folder)
    whole_folder = folder / "whole"
    whole_folder.mkdir()
    named = {
        name if name.startswith("lm_head") else prefix + name.removeprefix("model."): weight
        for name, weight in load_file(text / "model.safetensors").items()
    }
    save_file({**named, tower: torch.ones(3)}, whole_folder / "model.safetensors")
    inner = json.loads((text / "config.json").read_text())
    (whole_folder / "config.json").write_text(
        json.dumps({name: inner if value is None else value for name, value in config.items()})
    )
    with quiet():
        assert distance(whole_folder, plain(text)) < TOLERANCE
    return whole_folder


def test_a_half_of_a_foreign_type_runs(tmp_path: Path) -> None:
    """InternVL's own code names its weights as transformers' form does, its configuration otherwise."""
    config = {
        "model_type": "internvl_chat",
        "architectures": ["InternVLChatModel"],
        "auto_map": {"AutoConfig": "configuration_internvl_chat.InternVLChatConfig"},
        "llm_config": None,
        "torch_dtype": "bfloat16",
    }
    prefix = "language_model.model."
    folder = disguised("qwen3", tmp_path, prefix, "vision_model.embeddings.weight", config)
    assert check(load_config(str(folder))).dtype == torch.bfloat16


def test_a_half_beside_a_tower_of_another_library_runs(tmp_path: Path) -> None:
    config = {
        "model_type": "gemma3n",
        "architectures": ["Gemma3nForConditionalGeneration"],
        "text_config": None,
    }
    disguised("gemma3n_text", tmp_path, "model.language_model.", "model.vision_tower.timm.weight", config)


def test_a_half_that_lacks_a_weight_is_refused(tmp_path: Path) -> None:
    folder = build_whole("qwen2_vl", tmp_path)
    file = folder / "model.safetensors"
    weights = load_file(file)
    lost = next(name for name in weights if name.endswith("layers.1.mlp.down_proj.weight"))
    save_file({name: weight for name, weight in weights.items() if name != lost}, file, {"format": "pt"})
    with pytest.raises(UnsupportedModel, match=r"lacks 1 weights, the first is .*layers\.1\.mlp\.down_proj"):
        half(folder)


def test_names_of_towers_are_left_out() -> None:
    names = {
        "model.embed_tokens.weight": "model.embed_tokens.weight",
        "model.norm.weight": "model.norm.weight",
        "model.visual.norm.weight": None,
        "model.vision_tower.embed_tokens.weight": None,
        "model.multi_modal_projector.linear.weight": None,
        "visual.merger.weight": None,
        "lm_head.weight": "lm_head.weight",
    }
    assert text_names(names) == {name: own for name, own in names.items() if own is not None}
    assert text_names(["visual.merger.weight"]) == {}
