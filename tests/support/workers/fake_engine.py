"""An engine process with the real frames and the real process loop, whose model only counts: the next token
is the last one plus one. Any token that is lost, repeated or given to another row shows in the output.

    python tests/support/workers/fake_engine.py --fd N

The model is "counting:rows=8,step_s=0.002,…", see `Counting`.
"""

from __future__ import annotations

import argparse
import bisect
import hashlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from millstream_worker.engine.process import CannotLoad, Tell, serve
from millstream_worker.engine.protocol.channel import Channel
from millstream_worker.engine.protocol.config import EngineConfig, EngineInfo
from millstream_worker.engine.protocol.frames import Found, Tried
from millstream_worker.engine.protocol.outputs import Compiled, EngineStats, Refused, Step
from millstream_worker.engine.protocol.request import EngineRequest

COMMAND = f"{sys.executable} {Path(__file__)}"
EOS = 999
DEVICE_FAULT = "CUDA error: an illegal memory access was encountered\nIt may be reported late."


@dataclass(frozen=True, slots=True)
class Counting:
    """What the model name says. Files are how a test acts on an engine without knowing its process."""

    name: str = "counting"  # another one is another model
    by: int = 1  # how much it counts on
    tokenizer: str = ""
    rows: int = 8
    blocks: int = 512
    context: int = 512
    step_s: float = 0.0  # pause in every step, which makes progress all the while
    load_s: float = 0.0  # the same in loading
    dies: int = -1  # a process whose step has this number, from 0, dies in it
    leaks: int = 0  # from so many steps on, the audit finds blocks that nobody holds
    gate: str = ""  # folder: output token number N of any row is drawn once the file `N` is not there
    pids: str = ""  # folder: gets a file named after the process
    stillborn: str = ""  # folder: while it has a file, a process takes one away and dies in loading
    late: str = ""  # folder: while it has a file, a process takes one away between two steps, and dies then
    poison: int = -1  # drawing this token kills the process
    lethal: int = -1  # drawing this one kills the front, too
    hang: int = -1  # drawing this one never comes to an end
    stall: int = -1  # drawing this one stops the process, as a debugger would
    exhaust: int = -1  # drawing this one finds no memory
    graph_fault: int = -1  # sampling this one is a device fault, unless CUDA graphs are off
    check_fault: int = 0  # whether its start is a device fault, unless attention is plain PyTorch's
    device_fault: int = -1  # sampling this one is a device fault
    device_assert: int = -1  # sampling this one fails an assertion on the device
    nan: int = -1  # where this token would be drawn, the logits are no numbers
    refuse: int = -1  # a prompt that begins with this token is refused
    broken: str = ""  # why it cannot be loaded
    image_memory: int = 0  # bytes of images that it holds (`word_engine`); 0: it reads none
    tally: str = ""  # folder: gets a file of each process, see `word_engine.tallied`

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.name.encode()).hexdigest()[:32]

    @classmethod
    def parse(cls, model: str) -> Counting:
        name, _, rest = model.partition(":")
        if name != "counting":
            raise CannotLoad(f"model {model!r} is not counting:…")
        kinds = get_type_hints(cls)
        pairs = (part.split("=", 1) for part in rest.split(",") if part)
        return cls(**{name: kinds[name](value) for name, value in pairs})


def pause(seconds: float, mark: Callable[[], None]) -> None:
    """Wait, and make progress."""
    while seconds > 0:
        mark()
        time.sleep(min(seconds, 0.05))
        seconds -= 0.05


def suffer(model: Counting, token: int, front: int) -> None:
    """What drawing a token does that the model says is one to break at. `front`: the process that has this
    engine."""
    if token == model.poison:
        os.kill(os.getpid(), signal.SIGKILL)
    if token == model.lethal:
        if os.getppid() == front:  # not whoever inherits an engine that has lost its own
            os.kill(front, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    if token == model.stall:
        os.kill(os.getpid(), signal.SIGSTOP)
    if token == model.exhaust:
        raise MemoryError(f"no memory for token {token}")
    while token == model.hang:
        time.sleep(0.05)


@dataclass(slots=True)
class CountingRow:
    request: EngineRequest
    choice: int
    output: list[int]

    @property
    def handle(self) -> int:
        return self.request.handle + self.choice


@dataclass(slots=True)
class CountingEngine:
    """Has the methods of `engine.engine.Engine` that the process uses."""

    model: Counting
    graphs: bool = True
    mark: Callable[[], None] = lambda: None
    tell: Callable[[str], None] = lambda message: None
    waiting: list[EngineRequest] = field(default_factory=list)  # the interactive lane first
    rows: dict[int, CountingRow] = field(default_factory=dict)
    computed: int = 0
    drawn: int = 0
    steps: int = 0
    front: int = field(default_factory=os.getppid)

    @property
    def idle(self) -> bool:
        return not self.rows and not self.waiting

    def add(self, request: EngineRequest) -> Refused | None:
        if request.prompt[0] == self.model.refuse:
            return Refused(request.handle, "prompt", f"leave it out (got {self.model.refuse})")
        bisect.insort(self.waiting, request, key=lambda waiting: waiting.priority)
        return None

    def take_compiled(self) -> list[Compiled | Refused]:
        return []  # it follows no grammar

    def abort(self, handles: Iterable[int]) -> None:
        for handle in handles:
            self.rows.pop(handle, None)
            self.waiting = [request for request in self.waiting if request.handle != handle]

    def take_due(self) -> Callable[[], None] | None:
        if self.drawn and self.model.late and (left := list(Path(self.model.late).iterdir())):
            left[0].unlink()
            return self._die_aside
        return None

    def _die_aside(self) -> None:
        self.tell("working on itself")
        time.sleep(0.2)  # frames are sent by a thread of their own
        os.kill(os.getpid(), signal.SIGKILL)

    def step(self) -> Step | None:
        if self.steps == self.model.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        admitted = self._admit()
        pause(self.model.step_s, self.mark)
        running = [row for row in self.rows.values() if not self._gated(row)]
        if not running and not admitted:
            time.sleep(0.001)
            return None
        finished = [(row.handle, "error") for row in running if self._next(row) == self.model.nan]
        running = [row for row in running if self._next(row) != self.model.nan]
        tokens = [self._draw(row) for row in running]
        finished += [(row.handle, reason) for row in running if (reason := self._reason(row))]
        logprobs = [
            (place, -0.5, [token, 0], [-0.5, -1.5])
            for place, (row, token) in enumerate(zip(running, tokens, strict=True))
            if row.request.sampling.top_logprobs is not None
        ]
        for handle, _ in finished:
            del self.rows[handle]
        self.drawn += len(tokens)
        self.steps += 1
        stats = self._stats(len(tokens))
        handles = [row.handle for row in running]
        return Step(handles, tokens, finished, admitted, logprobs, stats, self._drafts(running))

    def _drafts(self, running: list[CountingRow]) -> list[tuple[int, int, int]]:
        """As if the predicted token had been verified at each place that has one."""
        return [
            (row.handle, 1, int(row.request.prediction[len(row.output) - 1] == row.output[-1]))
            for row in running
            if len(row.output) <= len(row.request.prediction)
        ]

    def check(self) -> None:
        assert not 0 < self.model.leaks <= self.steps, "7 KV blocks are held by no row"

    def report(self) -> Step:
        return Step([], [], [], [], [], self._stats(0))

    def _admit(self) -> list[tuple[int, int]]:
        admitted = []
        while self.waiting and self._has_room(self.waiting[0]):
            request = self.waiting.pop(0)
            for choice in range(request.choices):
                if choice not in request.done:
                    output = list(request.outputs[choice]) if request.outputs else []
                    row = CountingRow(request, choice, output)
                    self.rows[row.handle] = row
            self.computed += len(request.prompt)
            admitted.append((request.handle, 0))
        return admitted

    def _has_room(self, request: EngineRequest) -> bool:
        if any(row.request.alone for row in self.rows.values()) or (request.alone and self.rows):
            return False
        return len(self.rows) + request.choices <= self.model.rows

    def _gated(self, row: CountingRow) -> bool:
        return bool(self.model.gate) and Path(self.model.gate, str(len(row.output))).exists()

    def _next(self, row: CountingRow) -> int:
        last = row.output[-1] if row.output else row.request.prompt[-1] + row.choice
        return (last + self.model.by) % 1000

    def _draw(self, row: CountingRow) -> int:
        token = self._next(row)
        suffer(self.model, token, self.front)
        self._fault(token)
        row.output.append(token)
        return token

    def _fault(self, token: int) -> None:
        if token == self.model.device_fault or (token == self.model.graph_fault and self.graphs):
            raise RuntimeError(DEVICE_FAULT)
        if token == self.model.device_assert:
            raise RuntimeError("CUDA error: device-side assert triggered")

    def _reason(self, row: CountingRow) -> str | None:
        sampling = row.request.sampling
        if row.output[-1] in sampling.end_ids and len(row.output) > sampling.min_tokens:
            return "stop"
        return "length" if len(row.output) >= row.request.max_tokens else None

    def _stats(self, tokens: int) -> EngineStats:
        tokens_held = sum(len(row.request.prompt) + len(row.output) for row in self.rows.values())
        used = tokens_held // 16 + len(self.rows)
        return EngineStats(
            rows_running=len(self.rows),
            rows_waiting=len(self.waiting),
            free_rows=self.model.rows - len(self.rows),
            blocks_used=used,
            blocks_free=max(0, self.model.blocks - used),
            step_s=self.model.step_s,
            step_tokens=tokens,
            prompt_computed_total=self.computed,
            prefix_queried_total=self.computed,
            output_total=self.drawn,
        )


def build(
    config: EngineConfig, report: Callable[[str], None], mark: Callable[[], None], tell: Tell
) -> tuple[CountingEngine, EngineInfo]:
    model = Counting.parse(config.model)
    tell(Found(model.name, model.digest))
    report("reading the weights")
    pause(model.load_s, mark)
    if model.broken:
        raise CannotLoad(model.broken)
    if model.check_fault and config.attention != "torch":
        report(Tried.ATTENTION)
        raise RuntimeError(DEVICE_FAULT)
    if model.stillborn and (left := list(Path(model.stillborn).iterdir())):
        left[0].unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    if model.pids:
        Path(model.pids, str(os.getpid())).touch()
    on_gpu = max(model.graph_fault, model.device_fault) >= 0
    info = info_of(model, vocabulary=1000, eos=EOS, device="cuda:0" if on_gpu else "cpu")
    return CountingEngine(model, config.cuda_graphs != "off", mark, report), info


def info_of(model: Counting, *, vocabulary: int, eos: int, device: str = "cpu") -> EngineInfo:
    return EngineInfo(
        model=model.name, digest=model.digest, architecture="Counting", dtype="float32", device=device,
        attention="none",
        vocab_size=vocabulary, context_length=model.context, eos_ids=(eos,), block_size=16,
        blocks=model.blocks, max_rows=model.rows, kv_bytes_per_token=1, parameters=8,
        tokenizer=model.tokenizer, weights="int8", kv_format="int8", weight_bytes=9,
    )  # fmt: skip


def run(build: Callable[..., Any], arguments: Sequence[str] | None = None) -> int:
    """An engine's process, as its front starts it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    peer = socket.socket(fileno=parser.parse_args(arguments).fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return serve(Channel(peer), build)


if __name__ == "__main__":
    sys.exit(run(build))
