"""Puts an engine together from its configuration: checkpoint, model, KV pool, runner, scheduler, loop."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import torch
from llguidance import LLTokenizer

from millstream_worker.engine.batch_limits import fit_limits
from millstream_worker.engine.brain.batch.shared_prefixes import SharingCosts
from millstream_worker.engine.brain.scheduler import Scheduler
from millstream_worker.engine.brain.scheduler_config import SchedulerConfig
from millstream_worker.engine.compilation import Compilation
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.grammars.grammar_compiler import GrammarCompiler
from millstream_worker.engine.grammars.grammar_thread import GrammarThread
from millstream_worker.engine.grammars.grammar_trial import GrammarTrial
from millstream_worker.engine.process import CannotLoad, Report
from millstream_worker.engine.progress import Mark
from millstream_worker.engine.protocol.config import EngineConfig, EngineInfo
from millstream_worker.engine.runner.checkpoint.checkpoint import Checkpoint, CheckpointError, resolve
from millstream_worker.engine.runner.checkpoint.vocabulary import read_vocabulary
from millstream_worker.engine.runner.cuda_graphs import recording
from millstream_worker.engine.runner.cuda_graphs.cuda import CudaRecorder
from millstream_worker.engine.runner.cuda_graphs.recorder import CannotRecord
from millstream_worker.engine.runner.cuda_graphs.steps import GraphLimits
from millstream_worker.engine.runner.device.cpu_threads import use_threads
from millstream_worker.engine.runner.device.free_cores import FreeCores
from millstream_worker.engine.runner.device.gpu import Gpu, gpu_of, settle
from millstream_worker.engine.runner.forward import Eager, Forward
from millstream_worker.engine.runner.kv.host_swap import HostSwap, copied_blocks, copy_bytes, open_swap
from millstream_worker.engine.runner.kv.kv_format import LAYOUT
from millstream_worker.engine.runner.kv.pool_size import capacity_line, free_bytes, pool_blocks, room_line
from millstream_worker.engine.runner.kv.storage import KVStorage, bytes_per_block
from millstream_worker.engine.runner.model.checked_attention import checked_attention
from millstream_worker.engine.runner.model.dtypes import DTYPES, computed_in
from millstream_worker.engine.runner.model.load import LoadedModel, load_model
from millstream_worker.engine.runner.model.support import UnsupportedModel
from millstream_worker.engine.runner.model.weights import load_config
from millstream_worker.engine.runner.profiling import step_needs
from millstream_worker.engine.runner.replay.cpu_replay import replayed, workspace_bytes
from millstream_worker.engine.runner.runner import Launched, Runner
from millstream_worker.engine.runner.sampling.sampler import Sampler
from millstream_worker.engine.runner.sampling.triton_draws import TritonDraws
from millstream_worker.engine.runner.self_check.findings import Findings, short
from millstream_worker.engine.runner.self_check.product_check import check_products

_SHARING = {  # by backend: on the CPU two rows that share 192 tokens are read faster together already
    "triton": SharingCosts(),
    "native": SharingCosts(row=16, step=256),
}


def build(
    config: EngineConfig,
    report: Report,
    mark: Mark = lambda: None,
    checkpoint: Checkpoint | None = None,
) -> tuple[Engine[Launched], EngineInfo]:
    """An engine ready for requests. `mark` is called as it gets on: with each weight read, later with each
    layer computed. `checkpoint`: the config's model, where it was found already. Raises CannotLoad with one
    clear message.
    """
    try:
        return _build(config, report, mark, checkpoint or resolve(config.model, config.cache_dir, report))
    except CheckpointError as error:  # names the model itself
        raise CannotLoad(str(error)) from error
    except torch.OutOfMemoryError as error:
        reason = str(error).partition("\n")[0]
        raise CannotLoad(
            f"model {config.model!r} does not fit on device {config.device!r}: {reason} Use a smaller model, "
            f"a smaller dtype (it is {config.dtype!r}), or less kv_memory (it is {config.kv_memory!r})"
        ) from error
    except (UnsupportedModel, ValueError, OSError) as error:
        raise CannotLoad(f"model {config.model!r}: {error}") from error


def _build(
    config: EngineConfig, report: Report, mark: Mark, checkpoint: Checkpoint
) -> tuple[Engine[Launched], EngineInfo]:
    device = _device(config.device)
    records = recording.wanted(config.cuda_graphs, device)
    loaded = _load(config, checkpoint, device, report, mark)
    findings = Findings(report)
    findings.fallbacks += loaded.fallbacks
    loaded = checked_attention(loaded, config.attention, config.block_size, findings, mark)
    check_products(loaded.model, findings)
    loaded = replace(loaded, draws=_draws(loaded, findings))
    compilation = Compilation(config, loaded, findings, mark)
    compilation.at_start()
    room = _Room(loaded, records, report, mark)
    config, blocks = fit_limits(config, device.type, room.blocks)
    info = _info(config, checkpoint, loaded, blocks)
    for line in (*loaded.notes, capacity_line(info), room_line(info)):
        report(line)
    storage = KVStorage(loaded.layer_specs, info.blocks, config.block_size, loaded.dtype, device)
    swap = open_swap(config, storage, report)
    sampler = Sampler(loaded.vocab_size, config.max_rows, device, loaded.library, loaded.draws)
    eager = Eager(loaded, storage, sampler.last_tokens, mark)
    width = min(-(-info.context_length // config.block_size), info.blocks)
    limits = GraphLimits(config.max_rows, config.max_step_tokens, width, room.step_bytes)
    cores = FreeCores(torch.get_num_threads()) if device.type == "cpu" else None
    runner = Runner(_forward(config, limits, eager, compilation, findings), sampler, mark, swap, cores)

    def compiled_later() -> None:
        eager.reconnect()
        runner.model = _forward(config, limits, eager, compilation, findings)

    depth = 1 if device.type == "cuda" else 0  # on the CPU launching computes: nothing runs ahead
    scheduler = _scheduler(config, info, depth, swap)
    info = replace(info, self_check=", ".join(findings.checks), fallbacks=tuple(findings.fallbacks))
    later = compilation.later(compiled_later)
    return Engine(scheduler, runner, depth=depth, later=later, grammars=_grammars(info)), info


def _grammars(info: EngineInfo) -> GrammarThread:
    def vocabulary(ends: tuple[int, ...]) -> LLTokenizer:
        return read_vocabulary(info.tokenizer, info.vocab_size, info.eos_ids + ends)

    trial = GrammarTrial()
    compiler = GrammarCompiler(vocabulary, trial.check, trial.problem_of_schema)
    return GrammarThread(compiler, trial.problem_of_instance)


def _load(
    config: EngineConfig, checkpoint: Checkpoint, device: torch.device, report: Report, mark: Mark
) -> LoadedModel:
    gpu = gpu_of(device)
    for line in (gpu.line, *gpu.warnings()) if gpu else (f"using {use_threads(config.threads)} CPU threads",):
        report(line)
    report(f"loading {checkpoint.name} from {checkpoint.folder}")
    folder = str(checkpoint.folder)
    loaded = load_model(
        folder,
        dtype=_dtype(config.dtype, folder, gpu, report),
        device=device,
        attention=config.attention,
        weights=_weights(config),
        kv_dtype=config.kv_dtype,
        cache_dir=config.cache_dir,
        gpu=gpu,
        report=report,
        mark=mark,
    )
    if gpu:  # the host prepares small tensors only: more threads would only spin
        use_threads(config.threads or 1)
    return loaded


@dataclass(slots=True, eq=False)
class _Room:
    """Sizes the KV pool, with as much memory kept aside as steps need: `step_bytes` for one that is computed
    from Python, of the configuration that was asked for last."""

    loaded: LoadedModel
    records: bool
    report: Report
    mark: Mark
    step_bytes: int = 0

    def blocks(self, config: EngineConfig) -> int:
        loaded, device = self.loaded, self.loaded.device
        rows, tokens = min(config.max_rows, config.max_step_tokens), config.max_step_tokens
        block_bytes = _block_bytes(config, loaded)
        needed = step_needs(
            loaded,
            tokens=tokens,
            rows=rows,
            block_size=config.block_size,
            report=self.report,
            mark=self.mark,
        )
        self.step_bytes = needed
        if self.records:  # what is recorded computes in memory of its own
            needed *= 2
        needed += copy_bytes(config, block_bytes, device)
        if device.type == "cpu" and config.compile_model != "off":
            needed += workspace_bytes(loaded.vocab_size)
        return pool_blocks(config.kv_memory, block_bytes, device, free=free_bytes(device), aside=needed)


def _draws(loaded: LoadedModel, findings: Findings) -> TritonDraws | None:
    """The kernel that draws, where Triton's kernels of attention have passed their check, and it can be
    launched."""
    if loaded.attention != "triton":
        return None
    try:
        draws = TritonDraws(loaded.vocab_size)
        draws.try_out(loaded.dtype, loaded.device)
        settle(loaded.device)
    except Exception as error:  # noqa: BLE001 - of a compiler, a driver, or a vocabulary that is too large
        findings.fall_back(f"sampling: plain PyTorch, slower than one kernel: {short(error)}")
        return None
    return draws


def _block_bytes(config: EngineConfig, loaded: LoadedModel) -> int:
    return bytes_per_block(loaded.layer_specs, config.block_size, loaded.dtype)


def _forward(
    config: EngineConfig, limits: GraphLimits, eager: Eager, compilation: Compilation, findings: Findings
) -> Forward:
    """How steps are computed: called from Python, or replayed where that is possible."""
    device = eager.loaded.device
    if recording.wanted(config.cuda_graphs, device):
        return _cuda_graphs(config, limits, eager, findings)
    if device.type == "cpu" and compilation.done:
        return replayed(eager, findings.report)
    return eager


def _cuda_graphs(config: EngineConfig, limits: GraphLimits, eager: Eager, findings: Findings) -> Forward:
    try:
        graphs = recording.record(eager, CudaRecorder(eager.loaded.device), limits, findings)
    except CannotRecord as error:
        if config.cuda_graphs == "on":
            raise ValueError(f"cuda_graphs 'on': the model cannot be recorded: {error}") from error
        findings.fall_back(f"no CUDA graphs, steps are launched one operation at a time: {error}")
        return eager
    return graphs


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r}: this torch build sees no CUDA device; use 'cpu' or 'auto'")
    if device.type == "cuda":
        index, count = device.index or 0, torch.cuda.device_count()
        if index >= count:
            raise ValueError(f"device {name!r}: there are {count} CUDA devices here, counted from cuda:0")
        torch.cuda.set_device(index)  # events and Triton's kernels belong to the current device
    return device


def _dtype(name: str, folder: str, gpu: Gpu | None, report: Report) -> torch.dtype:
    if name != "auto":
        return DTYPES[name]
    own: torch.dtype | None = load_config(folder).dtype
    chosen = computed_in(own, gpu)
    if own not in (None, chosen):
        report(f"the checkpoint's precision, {own}, is not computed well here: it becomes {chosen}")
    return chosen


def _weights(config: EngineConfig) -> str:
    """With a precision that was asked for, quantised checkpoints are dequantised: the reference for them."""
    return "dequantized" if config.weights == "auto" and config.dtype != "auto" else config.weights


def _info(config: EngineConfig, checkpoint: Checkpoint, loaded: LoadedModel, blocks: int) -> EngineInfo:
    context = min(loaded.context_length, config.max_context or loaded.context_length)
    return EngineInfo(
        model=checkpoint.name,
        architecture=loaded.architecture,
        dtype=str(loaded.dtype).removeprefix("torch."),
        weights=loaded.weights,
        kv_format=loaded.kv_format,
        weight_bytes=loaded.weight_bytes,
        device=str(loaded.device),
        attention=loaded.attention,
        vocab_size=loaded.vocab_size,
        context_length=context,
        eos_ids=loaded.eos_ids,
        block_size=config.block_size,
        blocks=blocks,
        max_rows=config.max_rows,
        kv_bytes_per_token=_block_bytes(config, loaded) // config.block_size,
        parameters=loaded.parameters,
        tokenizer=str(checkpoint.tokenizer_folder),
    )


def _scheduler(config: EngineConfig, info: EngineInfo, depth: int, swap: HostSwap | None) -> Scheduler:
    return Scheduler(
        SchedulerConfig(
            max_rows=config.max_rows,
            max_step_tokens=config.max_step_tokens,
            block_size=config.block_size,
            blocks=info.blocks,
            context_length=info.context_length,
            vocab_size=info.vocab_size,
            prefix_cache=config.prefix_cache,
            sharing=_SHARING.get(info.attention) if config.shared_attention else None,
            salted=config.prefix_scope == "tenant",
            hash_seed=hashlib.sha256(
                f"{info.model} {info.dtype} {info.weights} {info.kv_format} {LAYOUT}".encode()
            ).digest(),
            pipeline_depth=depth,
            step_time_target_s=config.step_time_target_ms / 1000,
            step_time_for_all=config.step_time_for == "all",
            speculate=config.speculate,
            host_blocks=swap.pages if swap else 0,
            host_blocks_a_step=copied_blocks(config),
            host_block_s=swap.block_seconds() if swap else 0.0,
        )
    )
