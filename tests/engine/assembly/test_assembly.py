"""What the configuration may ask for that is not there: each is one message, and no engine that dies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from support.models import checkpoints
from transformers import LlamaForCausalLM

from millstream_worker.engine.assembly import build, checked_model, chosen_device
from millstream_worker.engine.process import CannotLoad
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.request import EngineRequest
from millstream_worker.engine.runner.gpu.gpu import GIB, Gpu

H200 = Gpu("NVIDIA H200", (9, 0), 140 * GIB, 139 * GIB)
T4 = Gpu("Tesla T4", (7, 5), 15 * GIB, 14 * GIB)


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    model = str(checkpoints.build("llama", tmp_path))
    return EngineConfig(model, device="cpu", threads=1, kv_memory="1MiB", compile_model="off")


def why(config: EngineConfig) -> str:
    with pytest.raises(CannotLoad) as refused:
        build(config, lambda _: None)
    return str(refused.value)


def test_cuda_where_there_is_none(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "device 'cuda:1': this torch build sees no CUDA device" in why(replace(config, device="cuda:1"))
    assert "cuda_graphs 'on' needs a CUDA device" in why(replace(config, cuda_graphs="on"))


def test_the_device_that_is_asked_for_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events are recorded, and Triton's kernels are launched, on the current one whatever the tensors say."""
    current: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)

    assert [str(chosen_device._device(name)) for name in ("cuda:1", "auto", "cuda")] == [
        "cuda:1",
        "cuda",
        "cuda",
    ]
    assert current == [1, 0, 0]
    with pytest.raises(
        ValueError, match="device 'cuda:2': there are 2 CUDA devices here, counted from cuda:0"
    ):
        chosen_device._device("cuda:2")


@pytest.mark.parametrize(
    ("own", "supported", "gpu", "runs_in"),
    [
        ("bfloat16", True, None, torch.bfloat16),
        ("bfloat16", False, None, torch.float32),
        ("bfloat16", False, H200, torch.bfloat16),
        ("bfloat16", True, T4, torch.float32),
        ("float16", True, None, torch.float32),
        ("float16", True, T4, torch.float16),
        ("float32", True, None, torch.float32),
        (None, True, H200, torch.float32),  # it has none that could be computed badly
    ],
)
def test_a_precision_that_the_processor_lacks_becomes_float32(
    own: str | None, supported: bool, gpu: Gpu | None, runs_in: torch.dtype,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "dtype": own}))
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)
    said: list[str] = []
    assert checked_model._dtype("auto", str(tmp_path), gpu, said.append) == runs_in
    assert bool(said) == (own is not None and str(runs_in) != f"torch.{own}")


def test_nowhere_to_keep_what_is_compiled(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """No HOME, and a user id that has no name: as some container platforms start a process."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert "Could not determine home directory.; set HOME, or MILLSTREAM_CACHE_DIR" in why(config)


def test_a_model_that_does_not_fit(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nand a table")

    monkeypatch.setattr(LlamaForCausalLM, "from_pretrained", full)
    message = why(config)
    assert "does not fit on device 'cpu': CUDA out of memory. Tried to allocate 2.00 GiB." in message
    assert "\n" not in message


def test_sizes_that_leave_or_say_nothing_and_no_model(config: EngineConfig, tmp_path: Path) -> None:
    for name in ("kv_memory", "host_swap"):
        assert f"{name} '1 parsec'" in why(replace(config, **{name: "1 parsec"}))
    assert "config.json" in why(replace(config, model=str(tmp_path)))
    assert "lower max_step_tokens" in why(replace(config, kv_memory="auto", max_step_tokens=10**10))


def test_weights_read_and_layers_computed_are_progress(config: EngineConfig) -> None:
    marks = 0

    def mark() -> None:
        nonlocal marks
        marks += 1

    engine, _ = build(config, lambda _: None, mark)
    loaded, marks = marks, 0
    engine.add(EngineRequest(1, (1, 2, 3), max_tokens=1))
    assert engine.step() is not None
    with safe_open(next(Path(config.model).glob("*.safetensors")), framework="np") as weights:
        tensors = len(weights.keys())
    layers = json.loads(Path(config.model, "config.json").read_text())["num_hidden_layers"]
    assert loaded >= tensors
    assert marks == layers + 2  # and the logits, and the tokens


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), MemoryError),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), MemoryError),
        (RuntimeError("shapes do not match"), RuntimeError),
    ],
)
def test_only_a_step_out_of_memory_raises_a_memory_error(
    config: EngineConfig, error: Exception, becomes: type[Exception]
) -> None:
    def fail(*_: object) -> None:
        raise error

    engine, _ = build(config, lambda _: None)
    engine.add(EngineRequest(1, (1, 2, 3), max_tokens=1))
    engine.runner.model.loaded.model.get_input_embeddings().register_forward_pre_hook(fail)
    with pytest.raises(becomes) as raised:
        engine.step()
    assert str(raised.value) == str(error)
