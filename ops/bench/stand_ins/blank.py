"""An engine process with the real batch loop and scheduler, over a model that is none: each row draws the
same token, in steps of a given length. For what depends on the order in which rows get in.

    python -m ops.bench.stand_ins.blank --fd N [--step-s S]        model: a folder with a tokenizer
"""

from __future__ import annotations

import argparse
import signal
import socket
import sys
import time
from functools import partial
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from millstream_worker.engine.brain.batch.plan import Plan, Sampled, TokenMasks
from millstream_worker.engine.brain.scheduler import Scheduler
from millstream_worker.engine.brain.scheduler_config import SchedulerConfig
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.process import serve
from millstream_worker.engine.protocol.channel import Channel
from millstream_worker.engine.protocol.config import EngineConfig, EngineInfo

BLOCKS = 4096
ROWS, TOKENS = 64, 2048  # of a step, unless the settings say so
CONTEXT = 8192


class Blank:
    """Stands where the runner stands."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s

    def sample(self, handle: Sampled, masks: TokenMasks | None = None) -> None:
        """It has its tokens."""

    def forward(self, plan: Plan) -> Sampled:
        time.sleep(self._step_s)
        return Sampled(np.full(len(plan.logit_indices), 7, np.int32), {})

    def settle(self, drawn: Sampled) -> Sampled:
        return drawn


def build(step_s: float, config: EngineConfig, *_: object) -> tuple[Engine[Any], EngineInfo]:
    rows, tokens = config.max_rows or ROWS, config.max_step_tokens or TOKENS
    scheduler = SchedulerConfig(
        max_rows=rows,
        max_step_tokens=tokens,
        block_size=config.block_size,
        blocks=BLOCKS,
        context_length=CONTEXT,
        prefix_cache=config.prefix_cache,
        hash_seed=b"blank",
    )
    info = EngineInfo(
        model="blank",
        architecture="none",
        dtype="none",
        device="cpu",
        attention="none",
        vocab_size=Tokenizer.from_file(f"{config.model}/tokenizer.json").get_vocab_size(),
        context_length=CONTEXT,
        eos_ids=(),
        block_size=config.block_size,
        blocks=BLOCKS,
        max_rows=rows,
        kv_bytes_per_token=0,
        parameters=0,
        tokenizer=config.model,
    )
    return Engine(Scheduler(scheduler), Blank(step_s)), info


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--step-s", type=float, default=0.0)
    options = parser.parse_args()
    peer = socket.socket(fileno=options.fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(serve(Channel(peer), partial(build, options.step_s)))
