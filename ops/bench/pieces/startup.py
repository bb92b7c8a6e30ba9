"""From the start of a process to "ready": what the front imports before it serves, and what the engine says
on its way, each with its time.

    python -m ops.bench startup --model smol135m [--device cpu] [--threads 2] [--repeats 3]

Seconds of the clock, the fastest of the repeats, and seconds of CPU in brackets. The first start after a
boot also reads libraries and weights from the disk; run it twice. The limit is that of memory: the weights,
read once.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.bench import machine
from ops.bench.command_line import parser_of
from ops.bench.models.checkpoints import checkpoint

from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.frames import LoadFailed, LoadProgress, Ready
from millstream_worker.engine_link.link import EngineLink

_FRONT = """
from millstream_worker import command
command._leave_torch_out()
import millstream_worker.service.service
"""
_ENGINE = (sys.executable, "-m", "millstream_worker.engine")
_ENGINE_IMPORTS = "import millstream_worker.engine.assembly"


@dataclass(frozen=True, slots=True, order=True)
class Start:
    """The fastest is the least. `stages`: seconds since the process was started, and its report then."""

    seconds: float
    cpu_s: float
    stages: tuple[tuple[float, str], ...] = ()


def main() -> None:
    options = _options()
    folder = checkpoint(options.model, options.device)
    config = EngineConfig(
        str(folder),
        device=options.device,
        threads=options.threads,
        kv_memory=options.kv_memory,
    )
    print(f"{machine.describe()}, {options.threads or 'all'} threads, {options.model} on {options.device}\n")
    for name, code in (("the front's imports", _FRONT), ("the engine's imports", _ENGINE_IMPORTS)):
        _print(name, min(python(code) for _ in range(options.repeats)))
    _print("the engine, ready", min(asyncio.run(engine(config)) for _ in range(options.repeats)))
    print(limit(folder, machine.measure(options.threads, options.device)))


def python(code: str) -> Start:
    """A process that runs these lines."""
    started, used = time.perf_counter(), _children_cpu_s()
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
    return Start(time.perf_counter() - started, _children_cpu_s() - used)


async def engine(config: EngineConfig, argv: Sequence[str] = _ENGINE) -> Start:
    """An engine process as the worker starts it, up to its Ready. Raises SystemExit with the reason where it
    cannot load the model."""
    started, used = time.perf_counter(), _children_cpu_s()
    stages: list[tuple[float, str]] = []
    seconds = 0.0
    link = await EngineLink.start(argv, config)
    async for frame in link.frames():
        now = time.perf_counter() - started
        match frame:
            case LoadProgress(message):
                stages.append((now, message))
            case LoadFailed(message):
                await link.stop(10)
                raise SystemExit(message)
            case Ready():
                seconds = now
                break
    await link.stop(10)
    return Start(seconds, _children_cpu_s() - used, tuple(stages))


def limit(folder: Path, limits: machine.Limits) -> str:
    """The time in which memory delivers the weights. A GPU's get there through the host's, which is
    slower.
    """
    files = [folder] if folder.is_file() else folder.glob("*.safetensors")
    size = sum(file.stat().st_size for file in files)
    return f"{size / limits.read_bytes_s:6.2f}         the limit: {size / 1e6:,.0f} MB of weights; {limits}"


def _children_cpu_s() -> float:
    """Of those that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _print(name: str, start: Start) -> None:
    print(f"{start.seconds:6.2f} ({start.cpu_s:.2f})  {name}")
    for seconds, message in start.stages:
        print(f"{seconds:17.2f}  {message}")


def _options() -> argparse.Namespace:
    parser = parser_of("startup", __doc__)
    parser.add_argument("--model", default="smol135m", help="a shape, a folder, a GGUF file or a hub id")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--kv-memory", default="auto")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
