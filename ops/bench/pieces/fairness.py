"""How long a small tenant waits behind a large one, in jobs of the large one that end before its last.

    python -m ops.bench fairness [--flood 5000] [--small 20]

One tenant has a long backlog; then another submits a few jobs. Beyond the window of a lane tenants take turns
by tokens: what decides is the window, and how far the worker looks ahead. The limit is what turns from the
first moment on would give: a job of the large tenant for each of the small one's; none where its lane goes
first.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ops.bench import machine
from ops.bench.stand_ins.counting import word_tokenizer

from millstream import AsyncClient, JobFields, Result
from millstream.cli.embedded.embedded_server import EmbeddedServer


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    lane: str = "batch"
    lookahead: int = 16

    def limit(self, small: int) -> int:
        return 0 if self.lane == "interactive" else small


CASES = (
    Case("as it is by default"),
    Case("the worker looks far ahead", lookahead=4096),
    Case("the small tenant in the interactive lane", lane="interactive"),
)


async def measure(case: Case, options: argparse.Namespace, url: str, folder: Path) -> int:
    """The large tenant's jobs that ended before the small one's last."""
    flood: list[JobFields] = [{"prompt": "w1", "max_tokens": 8, "tenant": "large"}] * options.flood
    few: list[JobFields] = [
        {"prompt": "w1", "max_tokens": 8, "tenant": "small", "lane": case.lane}
    ] * options.small
    async with AsyncClient(url) as client:
        large = await _submit(client, flood)
        small = await _submit(client, few)
        engine = f"{sys.executable} -m ops.bench.stand_ins.blank --step-s 0.002"
        command = ["-m", "millstream_worker", "--redis-url", url, "--log-level", "warning", "--max-rows", "8"]
        command += ["--model", str(word_tokenizer(folder)), "--engine-command", engine]
        command += ["--lookahead", str(case.lookahead)]
        worker = await asyncio.create_subprocess_exec(sys.executable, *command, start_new_session=True)
        try:
            ends = await client.wait_many(small)
            last_ms = max(_end_ms(outcome) for outcome in ends.values())
            statuses = [await client.status(job_id) for job_id in large]
        finally:
            worker.kill()
            await worker.wait()
    return sum(status.finished_ms is not None and status.finished_ms < last_ms for status in statuses)


async def _submit(client: AsyncClient, jobs: list[JobFields]) -> list[str]:
    """All of them, or the error of the first that was refused: a smaller flood would look fairer."""
    ids = []
    for outcome in await client.submit_many(jobs):
        if isinstance(outcome, Exception):
            raise outcome
        ids.append(outcome.id)
    return ids


def _end_ms(outcome: object) -> int:
    assert isinstance(outcome, Result), outcome
    assert outcome.timing.finished_ms is not None
    return outcome.timing.finished_ms


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m ops.bench fairness", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--flood", type=int, default=5000)
    parser.add_argument("--small", type=int, default=20)
    options = parser.parse_args()
    print(machine.describe())
    print(
        f"\n| {options.small} jobs behind {options.flood} of another tenant | ended before the last | limit |"
    )
    print("|---|---|---|")
    for case in CASES:
        with tempfile.TemporaryDirectory(prefix="fairness-") as name:
            folder = Path(name)
            with EmbeddedServer(folder / "server") as server:
                before = asyncio.run(measure(case, options, server.url, folder))
        print(f"| {case.name} | {before:,} | {case.limit(options.small)} |", flush=True)


if __name__ == "__main__":
    main()
