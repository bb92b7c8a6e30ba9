"""The benchmark's interface to an engine. Only the standard library: the other side of it runs in the
engine's own environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ops.bench.measures import Run
from ops.bench.workloads import Workload


@dataclass(frozen=True, slots=True)
class Setup:
    """How an engine is loaded; the same for a whole run."""

    folder: str  # with config.json and safetensors
    device: str  # cpu | cuda
    threads: int  # on the CPU; 0: the engine's own choice
    kv_token_bytes: int
    kv_tokens: int  # of the largest workload, prompts and outputs: it fits at once
    longest_row: int  # tokens, prompt and output
    rows: int  # requests of the largest workload
    dtype: str = "bfloat16"  # the checkpoint's
    max_rows: int = 0  # rows in a batch; 0: the engine's own choice
    max_step_tokens: int = 0  # tokens in a step; 0: the engine's own choice
    settings: str = ""  # of our own engine: "compile_model=on,max_rows=64"
    gguf: str = ""  # the same model as a GGUF file, for engines that want one


class Adapter(Protocol):
    """All rows are greedy and run to their exact output length, with no end of sequence."""

    version: str

    def run(self, workload: Workload, salt: str) -> Run:
        """One pass; all requests arrive at its start. Nothing computed under another `salt` may be found in a
        prefix cache. Raises ValueError if the outputs have other lengths than the workload's.
        """
        ...
