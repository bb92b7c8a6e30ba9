"""When a model is compiled: at start, after a busy minute, or never.

On a GPU it is compiled at start. On the CPU a compiled step takes 0.2 to 0.6 ms less for each layer, and can
be replayed (`runner.replay`); compiling takes 12 to 20 seconds. A worker that has been busy for a minute
compiles between two steps, where five minutes of such steps pay for it; later starts find the code. Demos and
short runs never wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from millstream_worker.engine.batch_limits import ON_GPU
from millstream_worker.engine.engine import Later
from millstream_worker.engine.progress import Mark
from millstream_worker.engine.protocol.config import EngineConfig, cache_folder
from millstream_worker.engine.runner.compiled.cache import CompileCache
from millstream_worker.engine.runner.compiled.compile import CannotCompile, compile_model
from millstream_worker.engine.runner.device.cpu_threads import use_threads
from millstream_worker.engine.runner.kv.pool_size import free_bytes
from millstream_worker.engine.runner.model.load import LoadedModel
from millstream_worker.engine.runner.self_check.findings import Findings

BUSY_S = 60.0  # of computing before it is done
_LAYER_S = 0.008  # of the mean step, for each layer: compiled code saved 9 % of 6.5 ms, none of 55
_NOT = "the model is not compiled:"
_ROOM = 2**30  # bytes that the compiler may take beside the engine: it took 0.6 GiB


@dataclass(slots=True, eq=False)
class Compilation:
    """Decides when one engine's model is compiled."""

    config: EngineConfig
    loaded: LoadedModel
    findings: Findings
    mark: Mark
    compiler: Callable[..., float] = compile_model
    free: Callable[[torch.device], int] = free_bytes
    done: bool = False
    _tried: bool = False

    def at_start(self) -> None:
        """Compile the model now where that is due, before its attention modules are connected."""
        if self.config.compile_model == "on":
            self._compile()
        elif self._automatic and (self._on_gpu or self._kept.ready):
            self._compile_unless_abandoned()

    def later(self, finish: Callable[[], None]) -> Later | None:
        """Returns the work that a busy worker does later; None where `at_start` has tried, or there is
        none. `finish` is called after the attempt."""
        if not self._automatic or self._tried:
            return None
        return Later(BUSY_S, lambda step_s: self._compile_between_steps(finish, step_s))

    @property
    def _on_gpu(self) -> bool:
        return self.loaded.device.type == "cuda"

    @property
    def _automatic(self) -> bool:
        return self.config.compile_model == "auto"

    @property
    def _kept(self) -> CompileCache:
        return CompileCache(cache_folder(self.config.cache_dir), self.loaded)

    def _compile_between_steps(self, finish: Callable[[], None], step_s: float) -> None:
        if not self._on_gpu:
            # the code is made for so many; `FreeCores` may have chosen fewer
            use_threads(self.config.threads)
        free = self.free(self.loaded.device)
        if free < _ROOM:
            self._go_without(f"compiling needs {_ROOM >> 30} GiB of memory, {free / 2**30:.1f} GiB are free")
            return
        layers = self.loaded.anatomy.layers or self.loaded.layer_specs
        if step_s > _LAYER_S * len(layers):
            self._go_without(f"steps of {step_s:.2f} s gain too little; MILLSTREAM_COMPILE_MODEL=on does it")
            return
        self._compile_unless_abandoned()
        finish()

    def _compile_unless_abandoned(self) -> None:
        self._tried = True
        if self._kept.abandoned:
            self._fall_back("earlier attempts ended badly; MILLSTREAM_COMPILE_MODEL=on tries again")
        else:
            self._compile()

    def _compile(self) -> None:
        kept = self._kept
        try:
            with kept.compilation():
                worst = self.compiler(
                    self.loaded,
                    kept.folder,
                    self.findings.report,
                    self.mark,
                    most_tokens=self.config.max_step_tokens or ON_GPU[1] if self._on_gpu else 0,
                    fall_back=self.findings.fall_back,
                )
            self.findings.passed("compiled model", worst)
            self.done = True
        except (CannotCompile, OSError) as error:
            self._fall_back(str(error))

    def _go_without(self, reason: str) -> None:
        self.findings.report(f"{_NOT} {reason}")

    def _fall_back(self, reason: str) -> None:
        self.findings.fall_back(f"{_NOT} {reason}")
