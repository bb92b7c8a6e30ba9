"""What was added to an edited tree works in it; it is not there in this one. `test_recipes.py` runs these in
such a tree."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest
from support.commands import invoke
from support.engine.brain import ask, rig_of
from support.engine.planning import Segment, pack
from support.engine.serving import logits_of, runner_of, serve
from support.engine.whole_engine import run
from support.gateway import gateway
from support.models import checkpoints
from support.servers.servers import Server
from support.workers.hand_worker import hand_worker
from support.workers.jobs import held_job

from millstream.client.submit.requests import draft
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.openai.request_body import read_body
from millstream.wire import calls
from millstream.wire.keys import Lane
from millstream.wire.messages.job_messages import read_request
from millstream.wire.state.heartbeat import SERVING, beat
from millstream.wire.versions import WIRE_VERSION
from millstream_worker.engine.assembly import build
from millstream_worker.engine.assembly.sampling_choice import choose_sampling
from millstream_worker.engine.process import CannotLoad
from millstream_worker.engine.protocol import frames
from millstream_worker.engine.protocol.config import EngineInfo
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.model.load import load_model
from millstream_worker.engine.runner.model_config import support
from millstream_worker.engine.runner.self_check.findings import Findings
from millstream_worker.engine_link.link import EnginePort
from millstream_worker.intake.capacity import Capacity
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.engine_request import engine_request
from millstream_worker.jobs.served_model import ModelSlot
from millstream_worker.jobs.table import JobTable
from millstream_worker.observe.metrics import Metrics
from millstream_worker.service.report import Report
from millstream_worker.settings import BadSettings, load

PROMPT = [5, 60, 33, 9, 120, 77]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return lambda case: folder / case if (folder / case).exists() else checkpoints.build(case, folder)


def started(folder: Path, *flags: str) -> tuple[Any, EngineInfo]:
    """The engine that a worker with these flags starts: by its settings, and a frame."""
    few = ("--kv-memory=2MiB", "--max-rows=4", "--max-step-tokens=24", "--threads=1", "--compile-model=off")
    config = load([f"--model={folder}", "--dtype=float32", "--device=cpu", *few, *flags]).engine_config()
    [received] = frames.FrameBuffer().feed(frames.encode(frames.Configure(config)))
    assert isinstance(received, frames.Configure)
    return build(received.config, lambda line: None)


def test_a_setting_reaches_the_scheduler(checkpoint: Callable[[str], Path]) -> None:
    engine, _ = started(checkpoint("llama"), "--lull-ms=20")
    assert engine.scheduler.config.lull_s == 0.02
    with pytest.raises(BadSettings, match=r"lull_ms: .*less than or equal to 1000 .*--lull-ms"):
        load(["--model=m", "--lull-ms=2000"])


def test_a_field_reaches_the_engine() -> None:
    body = {"messages": [{"role": "user", "content": "w1"}], "top_h": 0.5}
    by_http = read_body(ApiEndpoint.CHAT, body, lane=Lane.BATCH, tenant="").request
    for fields in ({"prompt": "w1", "top_h": 0.5}, {"request": by_http}):
        sent = draft(fields, 0, 10**6)
        assert sent.version == WIRE_VERSION
        request = engine_request(held_job(request=read_request(sent.payload)))
        [received] = frames.FrameBuffer().feed(frames.encode(frames.Add(request)))
        assert cast("Any", received).request.sampling.top_h == 0.5


def test_a_route_answers_and_is_counted(valkey: Server) -> None:
    added = invoke("keys", "add", "acme", "--redis-url", valkey.url)
    key = {"authorization": f"Bearer {added.stdout.strip()}"}
    with (
        gateway(valkey.url, "--queue", "default", keyless=False) as door,
        httpx2.Client(base_url=door.url) as http,
    ):
        assert http.get("/v1/ready_models").status_code == 401
        for path in ("/v1/ready_models", "/ready_models"):
            answer = http.get(path, headers=key)
            assert (answer.status_code, answer.json()) == (200, {"ready": []})
        page = http.get("/metrics").text
    for status, count in ((200, 2.0), (401, 1.0)):
        assert f'requests_total{{route="/v1/ready_models",status="{status}"}} {count}' in page


async def test_a_statistic_reaches_prometheus_and_operators(valkey: Server) -> None:
    rig = rig_of(ask(1, 9, max_tokens=50), ask(2, 9, max_tokens=50))
    rig.step()
    rig.abort(1)
    stats = rig.scheduler.stats()
    registry, queue = CollectorRegistry(), EngineQueue(EnginePort())
    Metrics(registry).observe_step(stats)
    assert b'millstream_rows_aborted_total{queue="default"} 1.0' in generate_latest(registry)
    capacity = Capacity(JobTable(queue), queue, ModelSlot(), lookahead=4)
    capacity.update(stats)
    async with hand_worker(valkey.url) as worker:
        report = Report(worker.name, capacity, EnginePort(), ModelSlot(), started_ms=5)
        await worker.create_groups()
        await calls.run(worker.redis, calls.join(worker.keys, owner=worker.name))
        told = replace(report.heartbeat(), state=SERVING)
        await calls.run(worker.redis, beat(worker.keys, told, ttl_ms=60_000))
        shown = await asyncio.to_thread(invoke, "queue", "--wide", "--redis-url", valkey.url)
    assert "0 waiting, 1 aborted" in shown.stdout


@torch.inference_mode()
def test_a_linear_layer_is_served(checkpoint: Callable[[str], Path]) -> None:
    _, info = started(checkpoint("llama"), "--weights=half", "--attention=torch")
    assert (info.weights, info.self_check) == ("half", "half products off by at most 0")
    assert 8 * info.weight_bytes < 30 * info.parameters
    folder, cpu = str(checkpoint("llama")), torch.device("cpu")
    plan = pack([Segment(0, PROMPT, 0, [0, 1], range(len(PROMPT)))], 4)
    plain, halved = (
        logits_of(runner_of(loaded, blocks=4, block_size=4)[0], plan)
        for loaded in (
            load_model(folder, dtype=torch.float32, device=cpu, weights=weights, attention="torch")
            for weights in ("auto", "half")
        )
    )
    assert 0 < (plain - halved).abs().max() < 0.05
    with pytest.raises(ValueError, match="'half' are the model's own"):
        load_model(folder, dtype=torch.float16, device=cpu, weights="half")


def test_attention_is_checked_before_it_serves(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from millstream_worker.engine.runner.attention.slow_backend import (  # type: ignore[import-not-found]
        SlowAttention,
    )

    _, info = started(checkpoint("llama"), "--attention=slow")
    assert info.attention == "slow"
    assert re.fullmatch(r"attention off by at most \S+", info.self_check)
    right = SlowAttention.attend
    monkeypatch.setattr(SlowAttention, "attend", lambda *given: right(*given) * 1.1)
    with pytest.raises(CannotLoad, match="attention 'slow' does not work here"):
        started(checkpoint("llama"), "--attention=slow")


def test_sampling_by_a_chooser_gives_the_same_tokens(checkpoint: Callable[[str], Path]) -> None:
    from millstream_worker.engine.runner.sampling.slow_chooser import (  # type: ignore[import-not-found]
        SlowChooser,
    )

    requests = [EngineRequest(row, tuple(PROMPT), 8, SamplingSpec(temperature=row, seed=5)) for row in (0, 1)]
    engines = [started(checkpoint("llama"), f"--attention={name}")[0] for name in ("torch", "slow")]
    plain, slow = (run(engine, requests) for engine in engines)
    assert plain == slow
    folder, cpu = str(checkpoint("llama")), torch.device("cpu")
    loaded = load_model(folder, dtype=torch.float32, device=cpu, attention="slow")
    assert isinstance(choose_sampling(loaded, Findings(print)), SlowChooser)


@torch.inference_mode()
def test_a_head_answers_for_rows_of_a_step(checkpoint: Callable[[str], Path]) -> None:
    loaded = load_model(str(checkpoint("llama")), dtype=torch.float32, device=torch.device("cpu"))
    assert loaded.heads.names == ("logits", "mean")
    runner, _ = runner_of(loaded, blocks=8, block_size=4)
    rows = [Segment(0, PROMPT[:2], 0, [0]), Segment(1, PROMPT, 0, [1, 2])]
    answer = logits_of(runner, replace(pack(rows, 4), head="mean"))
    hidden = loaded.heads.body(torch.tensor(PROMPT[:2] + PROMPT), torch.tensor([0, 1, *range(6)]))
    torch.testing.assert_close(answer, torch.stack([hidden[:2].mean(0), hidden[2:].mean(0)]))
    assert logits_of(runner, pack(rows, 4)).shape == (2, loaded.vocab_size)


def test_a_model_type_is_served_once_it_is_named(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint("modernbert-decoder")

    def served() -> list[int]:
        loaded = load_model(str(folder), dtype=torch.float32, device=torch.device("cpu"))
        request = EngineRequest(0, tuple(PROMPT), 10, SamplingSpec(temperature=0.0))
        return serve(loaded, [(0, request)], blocks=30).tokens[0]

    assert served() == checkpoints.generate(checkpoints.plain(folder), PROMPT, 10)
    monkeypatch.setattr(support, "PROVEN", support.PROVEN - {"modernbert-decoder"})
    with pytest.raises(support.UnsupportedModel, match=r"\(modernbert-decoder\) is .* tested types"):
        served()
