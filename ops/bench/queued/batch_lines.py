"""Many short lines of a batch file through both doors: `run_batch`, and `/v1/batches` of a gateway. The
engine is a stand-in that draws as fast as it can.

    python -m ops.bench lines [--lines 100000]

For each door: lines/s, CPU microseconds a line of the process that carries the batch out (the program, the
gateway), and its peak memory in MiB, without what it takes before its first line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2
import psutil
from ops.bench import children, machine
from ops.bench.queued.counted_stream import HOST
from ops.bench.queued.gateway_stack import GatewayStack, gateway_stack

from millstream import AsyncClient, run_batch

ENDPOINT = "/v1/completions"
ROWS = 256


def main() -> None:
    parser = argparse.ArgumentParser("python -m ops.bench lines", description=__doc__)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--file", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.file:
        asyncio.run(_run_here(*options.file))
        return
    print(machine.describe())
    print("| door | lines/s | CPU us a line | peak MiB |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
        source = Path(folder) / "in.jsonl"
        write(source, options.lines)
        for door in (through_files, through_gateway):
            with gateway_stack(0.0, ROWS, "--max-batch-lines", str(options.lines)) as stack:
                seconds, cpu_s, peak = door(stack, source, options.lines)
            rate, cost = options.lines / seconds, cpu_s / options.lines * 1e6
            print(f"| {door.__name__} | {rate:,.0f} | {cost:.0f} | {peak / 2**20:.0f} |", flush=True)


def write(source: Path, lines: int) -> None:
    with source.open("w") as file:
        for number in range(lines):
            body = {"model": "default", "prompt": f"document {number}", "max_tokens": 2}
            line = {"custom_id": f"line-{number}", "method": "POST", "url": ENDPOINT, "body": body}
            file.write(json.dumps(line) + "\n")


def through_files(stack: GatewayStack, source: Path, lines: int) -> tuple[float, float, int]:
    """Seconds, CPU seconds, peak bytes: of a program that calls `run_batch`."""
    command = [sys.executable, "-m", "ops.bench.queued.batch_lines", "--file"]
    out = source.with_name("out.jsonl")
    told = subprocess.run(
        [*command, stack.redis_url, str(source), str(out)], stdout=subprocess.PIPE, check=True
    ).stdout
    assert sum(1 for _ in out.open()) == lines
    seconds, cpu_s, peak = json.loads(told)
    return seconds, cpu_s, peak


async def _run_here(url: str, source: str, out: str) -> None:
    async with AsyncClient(url) as client:
        await client.queue_info()
        process = psutil.Process()
        before, held, begun = children.spent_s(process), process.memory_info().rss, time.perf_counter()
        await run_batch(client, source, out)
    seconds = time.perf_counter() - begun
    print(json.dumps([seconds, children.spent_s(process) - before, _peak(process) - held]))


def through_gateway(stack: GatewayStack, source: Path, lines: int) -> tuple[float, float, int]:
    """The same of the gateway, from the upload to the end of the batch."""
    gateway = stack.gateway
    with httpx2.Client(base_url=f"http://{HOST}:{stack.port}", timeout=120) as http:
        before, held, begun = children.spent_s(gateway), gateway.memory_info().rss, time.perf_counter()
        with source.open("rb") as file:
            made = http.post("/v1/files", files={"file": file}, data={"purpose": "batch"}).json()
        asked = {"input_file_id": made["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
        batch = http.post("/v1/batches", json=asked).json()
        while batch["status"] in ("validating", "in_progress", "finalizing"):
            time.sleep(0.2)
            batch = http.get(f"/v1/batches/{batch['id']}").json()
    assert batch["request_counts"]["completed"] == lines, batch
    return time.perf_counter() - begun, children.spent_s(gateway) - before, _peak(gateway) - held


def _peak(process: psutil.Process) -> int:
    """Most bytes that were resident until now."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024


if __name__ == "__main__":
    main()
