"""`millstream-worker --check`: starts an engine, and prints one page about model and device that a user can
send: versions, what was checked and chosen, and how fast attention is beside what bounds it here."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, TextIO

from millstream_worker.engine.__main__ import load
from millstream_worker.engine.process import CannotLoad
from millstream_worker.engine.protocol.config import EngineConfig, EngineInfo

if TYPE_CHECKING:
    from millstream_worker.engine.runner.forward import Eager
    from millstream_worker.engine.runner.self_check.kernel_speed import Speed

_PACKAGES = ("millstream", "torch", "transformers", "triton")


def print_page(config: EngineConfig, out: TextIO) -> int:
    """Returns the exit status: 1 if the engine cannot be started."""

    def line(text: str) -> None:
        out.write(f"{text}\n")
        out.flush()  # whatever ends this process, what was found is there

    line(", ".join([f"Python {platform.python_version()}", *map(_versioned, _PACKAGES), platform.platform()]))
    line("\nstart")
    try:
        engine, info = load(config, lambda text: line(f"  {text}"), lambda: None, lambda found: None)
    except CannotLoad as error:
        line(f"\ncannot start: {error}")
        return 1
    line("\nchosen")
    for name, text in _chosen(info):
        line(f"  {name:<12}{text}")
    _print_speeds(engine.runner.model.eager, line)  # type: ignore[attr-defined]
    return 0


def _chosen(info: EngineInfo) -> list[tuple[str, str]]:
    return [
        (
            "model",
            f"{info.model}, {info.architecture}, {info.parameters / 1e6:,.1f}M parameters, {info.dtype}",
        ),
        ("keys and values", info.kv_format),
        ("weights", f"{info.weights}, {info.weight_bytes / 1e6:,.0f} MB"),
        ("device", info.device),
        ("attention", info.attention),
        ("batch", f"{info.max_rows} rows, {info.token_capacity:,} tokens of KV cache"),
        ("checked", info.self_check or "nothing: PyTorch alone computes"),
        *(("slower", reason) for reason in info.fallbacks),
    ]


def _print_speeds(eager: Eager, line: Callable[[str], None]) -> None:
    """Each as it comes: a fault of the device ends this process."""
    from millstream_worker.engine.runner.self_check.attention_check import kinds_of, named
    from millstream_worker.engine.runner.self_check.kernel_speed import KernelSpeeds

    loaded, block_size = eager.loaded, eager.storage.block_size
    speeds = KernelSpeeds(loaded.attend_over, loaded.dtype, loaded.device, block_size)
    line("\nwhat bounds attention")
    _print_each(speeds.bounds(), line)
    for kind in kinds_of(loaded.layer_specs):
        line(f"\nattention of a layer of {named(kind, loaded.dtype)}")
        _print_each(speeds.of(kind), line)


def _print_each(speeds: Iterator[Speed], line: Callable[[str], None]) -> None:
    import torch

    try:
        for speed in speeds:
            share = "" if speed.share is None else f"{speed.share:8.0%} of the bound"
            rate = f"{speed.rate / 1e9:,.1f} G{speed.unit}/s"
            line(f"  {speed.what:<44}{speed.seconds * 1e6:>12,.0f} us{rate:>18}{share}")
    except (MemoryError, torch.OutOfMemoryError) as error:
        line(f"  not measured: {error}")


def _versioned(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"
