"""Compiled models whose steps are recorded and replayed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.utils import clear_inductor_caches

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.compiled.compile import compile_model
from millstream_worker.engine.runner.model.load import LoadedModel, load_model
from millstream_worker.engine.runner.replay.call_recorder import CallRecorder
from millstream_worker.engine.runner.replay.cpu_replay import CpuReplay, recorded_size
from millstream_worker.engine.runner.runner import Runner
from support.engine.serving import eager_of


@contextlib.contextmanager
def compiled_for_replay(folder: Path, kept: Path) -> Iterator[LoadedModel]:
    """A process has one at a time. Its code is in `kept`."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as changes:
        changes.setenv("TORCHINDUCTOR_CACHE_DIR", str(kept))
        try:
            torch.set_num_threads(1)
            torch.compiler.set_stance("default")
            torch.compiler.reset()
            clear_inductor_caches()
            loaded = load_model(str(folder), dtype=torch.float32, device=torch.device("cpu"))
            compile_model(loaded, kept, lambda message: None)
            yield loaded
        finally:
            torch.compiler.set_stance("default")
            torch.compiler.reset()
            torch.set_num_threads(threads)


class Noted(CpuReplay):
    """Notes the sizes of the steps that it replays."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.replayed: list[tuple[int, int]] = []

    def replay(self, plan: Plan) -> torch.Tensor | None:
        logits = super().replay(plan)
        if logits is not None:
            self.replayed.append(recorded_size(plan))
        return logits


class Watch:
    """Has a runner's steps recorded; `change` is made to its form before it runs."""

    def __init__(
        self,
        change: Callable[[Noted], None] = lambda form: None,
        recorder: type[CallRecorder] = CallRecorder,
        form: type[Noted] = Noted,
    ) -> None:
        self.said: list[str] = []
        self._change, self._recorder, self._form = change, recorder, form

    def __call__(self, runner: Runner) -> None:
        self.form = self._form(eager_of(runner), self.said.append, self._recorder)
        self._change(self.form)
        runner.model = self.form
