"""Layers that read the keys and values of another: the pool holds them once, whatever reads or moves them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.engine.libraries import share_headers
from support.engine.serving import Served, eager_of, serve
from support.engine.whole_engine import engine_on, tokens_of
from support.models import checkpoints
from torch._dynamo.utils import counters

from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.attention.torch_backend import TorchAttention
from millstream_worker.engine.runner.compiled.compile import compile_model
from millstream_worker.engine.runner.kv.kv_format import KVFormat
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage, bytes_per_block
from millstream_worker.engine.runner.model.load import LoadedModel, load_model
from millstream_worker.engine.runner.replay.cpu_replay import CpuReplay
from millstream_worker.engine.runner.runner import Runner
from millstream_worker.engine.runner.self_check.attention_check import check_attention

CPU = torch.device("cpu")
Load = Callable[[str], LoadedModel]
OWN = (LayerSpec(4, 2, 16, 16, 0.3), LayerSpec(4, 1, 16, 12, 0.3, window=9))
LAYERS = (*OWN, replace(OWN[0], heads=6, source=0), replace(OWN[1], scale=0.2, source=1))


@pytest.mark.parametrize(
    ("case", "sources"),
    [
        ("gemma4_text", [None, None, 0, 1]),
        ("gemma3n_text", [None, None, 0, 1]),
        ("gemma4-keys", [None] * 4),  # its values are its keys before norm and rotation
    ],
)
def test_a_layer_reads_the_last_of_its_kind(case: str, sources: list[int | None], load: Load) -> None:
    specs = load(case).layer_specs
    assert [spec.source for spec in specs] == sources
    stored = [spec for spec in specs if spec.source is None]
    assert bytes_per_block(specs, 16, torch.float32) == bytes_per_block(stored, 16, torch.float32)


@pytest.mark.parametrize("kv_format", KVFormat)
def test_the_pool_holds_and_moves_each_key_once(kv_format: KVFormat) -> None:
    layers = [replace(layer, kv_format=kv_format) for layer in LAYERS]
    source, target = (KVStorage(layers, blocks, 4, torch.bfloat16, CPU) for blocks in (6, 9))
    held = sum(part.nbytes for part in source.parts())
    assert held == 6 * source.bytes_per_block == 6 * bytes_per_block(layers[:2], 4, torch.bfloat16)
    for parts in (source.keys, source.values, source.key_scales, source.value_scales):
        assert [parts[2] is parts[0], parts[3] is parts[1]] == [True, True]
    for part in source.parts():
        part.view(torch.uint8).random_()
    target.copy_in(torch.tensor([0, 8, 3]), source.copy_out(torch.tensor([4, 1, 5])))
    for mine, theirs in zip(source.keys, target.keys, strict=True):
        assert torch.equal(mine[[4, 1, 5]].view(torch.uint8), theirs[[0, 8, 3]].view(torch.uint8))


@pytest.mark.parametrize("kv_format", KVFormat)
def test_a_backend_reads_what_the_source_has_stored(kv_format: KVFormat, load: Load) -> None:
    """That of this machine; a layer that stores what it is given is found at start."""
    layers = [replace(layer, kv_format=kv_format) for layer in LAYERS]
    backend = load("llama").attend_over
    assert check_attention(backend, layers, torch.float32, CPU, 16, (1, 16, 17, 40)) < 1e-5

    def storing(storage: KVStorage) -> TorchAttention:
        wrong = TorchAttention(storage)
        storage.layers = tuple(replace(layer, source=None) for layer in storage.layers)
        return wrong

    with pytest.raises(Exception, match="on keys and values of another layer is off by"):
        check_attention(storing, layers, torch.float32, CPU, 16, (1, 16, 17, 40))


def run(loaded: LoadedModel, prepare: Callable[[Runner], None] = lambda runner: None) -> Served:
    """Rows that start and end at different times."""
    sampling = SamplingSpec(temperature=0.0, top_logprobs=0)
    requests = [
        EngineRequest(handle, tuple(range(5 + handle, 12 + 2 * handle)), 5 + 4 * handle, sampling)
        for handle in range(6)
    ]
    return serve(loaded, [(2 * request.handle, request) for request in requests], blocks=200, prepare=prepare)


@pytest.mark.parametrize(
    ("case", "kv_dtype"),
    [
        ("gemma4_text", "auto"),
        ("gemma4_text", "int8"),
        pytest.param("gemma3n_text", "int8", marks=pytest.mark.slow),
        pytest.param("gemma4-experts", "int8", marks=pytest.mark.slow),
    ],
)
def test_tokens_do_not_depend_on_the_way(case: str, kv_dtype: str, checkpoint: Callable[[str], Path]) -> None:
    """Blocks that come back from host memory hold what all their layers read, in either attention."""
    folder = checkpoint(case)
    engine = engine_on("cpu", folder, kv_dtype=kv_dtype, kv_memory="24KiB", host_swap="1MiB")
    assert tokens_of(engine) == tokens_of(engine_on("cpu", folder, kv_dtype=kv_dtype, attention="torch"))
    assert engine.report().stats.swapped_in_total > 0


def test_a_layer_has_the_format_of_its_source(checkpoint: Callable[[str], Path]) -> None:
    folder = str(checkpoint("gemma4_text"))
    loaded = load_model(folder, dtype=torch.float32, device=CPU, kv_dtype="int8")
    window, full = KVFormat.AS_COMPUTED, KVFormat.INT8
    assert [spec.kv_format for spec in loaded.layer_specs] == [window, full, window, full]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("fresh_compiler")
def test_layers_of_a_kind_are_compiled_once(tmp_path: Path) -> None:
    """Beside the two that others read: those that store, and those that read, with a window and without."""
    found: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        found.append(sum(isinstance(module, torch.fx.GraphModule) for module in graph.children()))
        return graph.forward

    sizes = {"num_hidden_layers": 10, "num_kv_shared_layers": 4}
    kinds = ["sliding_attention", "full_attention"] * 5
    folder = checkpoints.build("gemma4_text", tmp_path, layer_types=kinds, **sizes)
    loaded = load_model(str(folder), dtype=torch.float32, device=CPU)
    compile_model(loaded, tmp_path, lambda message: None, backends=[backend])
    assert (found, counters["stats"]["unique_graphs"]) == ([4], 1)


@pytest.mark.alone  # test_replay replays a compiled model, as does test_recorded_states
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
def test_a_compiled_model_is_replayed(load: Load, tmp_path: Path) -> None:
    want, loaded = run(load("gemma4_text")), load("gemma4_text")
    compile_model(loaded, share_headers(tmp_path) / "kept", lambda message: None)
    said, forms = list[str](), list[CpuReplay]()

    def replay(runner: Runner) -> None:
        forms.append(CpuReplay(eager_of(runner), said.append))
        runner.model = forms[0]

    got = run(loaded, replay)
    assert got.tokens == want.tokens
    assert said == []
    assert forms[0]._compared, "no step was replayed"
