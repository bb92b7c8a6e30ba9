"""An engine process without a model: every step gives every running row one random token. What is left to
measure is everything around the engine.

    python -m ops.bench.stand_ins.paced --fd N [--steps-s RATE] [--context TOKENS]

Its model is a folder with a tokenizer.
"""

from __future__ import annotations

import argparse
import random
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any

from tokenizers import Tokenizer

from millstream_worker.engine.process import Report, serve
from millstream_worker.engine.progress import Mark
from millstream_worker.engine.protocol.channel import Channel
from millstream_worker.engine.protocol.config import EngineConfig, EngineInfo
from millstream_worker.engine.protocol.outputs import Compiled, EngineStats, Refused, Step
from millstream_worker.engine.protocol.request import EngineRequest

BLOCK_SIZE = 16
ROWS = 64  # unless the settings say so
CONTEXT = 8192


class StandIn:
    """Has the methods of `engine.engine.Engine` that the process uses; rows need only a batch slot."""

    def __init__(self, vocab_size: int, max_rows: int, step_s: float) -> None:
        self._max_rows = max_rows
        self._step_s = step_s
        self._due = 0.0
        self._waiting: deque[EngineRequest] = deque()
        self._left: dict[int, int] = {}  # tokens still to come, by handle
        draw = random.Random(0)
        self._tokens = [draw.randrange(100, vocab_size) for _ in range(1 << 16)]
        self._drawn = 0

    @property
    def idle(self) -> bool:
        return not self._left and not self._waiting

    def add(self, request: EngineRequest) -> Refused | None:
        self._waiting.append(request)
        return None

    def abort(self, handles: Iterable[int]) -> None:
        for handle in handles:
            self._left.pop(handle, None)

    def step(self) -> Step | None:
        admitted = []
        while self._waiting and len(self._left) < self._max_rows:
            request = self._waiting.popleft()
            self._left[request.handle] = request.max_tokens
            admitted.append((request.handle, 0))
        if not self._left:
            return None
        self._pace()
        handles = list(self._left)
        start = self._drawn % (len(self._tokens) - len(handles))
        finished = []
        for handle in handles:
            self._left[handle] -= 1
            if not self._left[handle]:
                finished.append((handle, "length"))
                del self._left[handle]
        self._drawn += len(handles)
        tokens = self._tokens[start : start + len(handles)]
        return Step(handles, tokens, finished, admitted, [], self._stats(len(handles)))

    def _pace(self) -> None:
        """Steps come in the given rhythm; time that was lost is not made up for."""
        now = time.monotonic()
        time.sleep(max(0.0, self._due - now))
        self._due = max(now, self._due) + self._step_s

    def check(self) -> None:
        """There is no pool to audit."""

    def take_compiled(self) -> list[Compiled | Refused]:
        return []  # it follows no grammar

    def take_due(self) -> None:
        """Nothing was put off."""

    def report(self) -> Step:
        return Step([], [], [], [], [], self._stats(0))

    def _stats(self, tokens: int) -> EngineStats:
        return EngineStats(
            rows_running=len(self._left),
            rows_waiting=len(self._waiting),
            free_rows=self._max_rows - len(self._left),
            blocks_free=self._max_rows * CONTEXT // BLOCK_SIZE,
            step_tokens=tokens,
            output_total=self._drawn,
        )


def build(
    step_s: float, context: int, config: EngineConfig, _report: Report, _mark: Mark, *_: object
) -> tuple[Any, EngineInfo]:
    vocab_size = Tokenizer.from_file(f"{config.model}/tokenizer.json").get_vocab_size()
    rows = config.max_rows or ROWS
    info = EngineInfo(
        model="stand-in",
        architecture="none",
        dtype="none",
        device="cpu",
        attention="none",
        vocab_size=vocab_size,
        context_length=context,
        eos_ids=(),
        block_size=BLOCK_SIZE,
        blocks=rows * context // BLOCK_SIZE,
        max_rows=rows,
        kv_bytes_per_token=0,
        parameters=0,
        tokenizer=config.model,
    )
    return StandIn(vocab_size, rows, step_s), info


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--steps-s", type=float, default=0.0, help="steps per second; 0: as fast as it goes")
    parser.add_argument("--context", type=int, default=CONTEXT)
    options = parser.parse_args()
    peer = socket.socket(fileno=options.fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    step_s = 1 / options.steps_s if options.steps_s else 0.0
    sys.exit(serve(Channel(peer), partial(build, step_s, options.context)))
