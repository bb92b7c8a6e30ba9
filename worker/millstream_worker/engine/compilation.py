"""When a model's layers are compiled: at start, after some busy minutes, or never.

On a GPU it is done at start. On the CPU compiled layers give 2 to 30 % more, with AMX 9 to 108 %, and
only compiled steps can be noted (`runner.replay`); to compile them takes 10 to 65 seconds. There a
worker that has been busy for minutes does it between two steps, and later starts find the code. Demos and
short runs never wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millstream_worker.engine.config import EngineConfig, cache_folder
from millstream_worker.engine.loop import Later
from millstream_worker.engine.process import Report
from millstream_worker.engine.progress import Mark
from millstream_worker.engine.runner.compiled.cache import KeptCode
from millstream_worker.engine.runner.compiled.compile import CannotCompile, compile_model
from millstream_worker.engine.runner.memory import free_bytes
from millstream_worker.engine.runner.model import LoadedModel

NAMES = ("auto", "on", "off")
BUSY_S = 300.0  # of computing before it is done: it has been paid back when the run is twice as long
_ROOM = 2 * 2**30  # bytes that the compiler may take beside the engine


@dataclass(slots=True, eq=False)
class Compilation:
    """Of one engine's model. Raises ValueError for a `compile_model` that there is not."""

    config: EngineConfig
    loaded: LoadedModel
    report: Report
    mark: Mark
    done: bool = False

    def __post_init__(self) -> None:
        if self.config.compile_model not in NAMES:
            raise ValueError(
                f"compile_model is {self.config.compile_model!r}; it must be one of {', '.join(NAMES)}"
            )

    def at_start(self) -> None:
        """Before the attention modules are connected."""
        if self._asked:
            self._compile()
        elif self._automatic and (self._on_gpu or self._kept.ready):
            self._compile_unless_abandoned()

    def later(self, finish: Callable[[], None]) -> Later | None:
        """What is left for a busy worker; None where there is nothing to do, or it was done at start.
        `finish` is called after the try."""
        if not self._automatic or self._on_gpu or self._kept.ready:
            return None
        return Later(BUSY_S, lambda: self._compile_between_steps(finish))

    @property
    def _asked(self) -> bool:
        return self.config.compile_model == "on"

    @property
    def _on_gpu(self) -> bool:
        return self.loaded.device.type == "cuda"

    @property
    def _automatic(self) -> bool:
        return self.config.compile_model == "auto"

    @property
    def _kept(self) -> KeptCode:
        return KeptCode(cache_folder(self.config.cache_dir), self.loaded)

    def _compile_between_steps(self, finish: Callable[[], None]) -> None:
        free = free_bytes(self.loaded.device)
        if free < _ROOM:
            self._go_without(f"only {free / 2**30:.1f} GiB of memory are free; it may take {_ROOM >> 30}")
            return
        self._compile_unless_abandoned()
        finish()

    def _compile_unless_abandoned(self) -> None:
        if self._kept.abandoned:
            self._go_without("earlier tries ended badly; MILLSTREAM_COMPILE_MODEL=on tries again")
        else:
            self._compile()

    def _compile(self) -> None:
        kept = self._kept
        try:
            with kept.compilation():
                compile_model(self.loaded, kept.folder, self.report, self.mark)
            self.done = True
        except (CannotCompile, OSError) as error:
            self._go_without(str(error))

    def _go_without(self, reason: str) -> None:
        self.report(f"the model runs without being compiled: {reason}")
