"""Checks the steps of a GPU that nobody has tested while it serves: of its decode steps, some are computed
once more, for a few rows, by the model's own code and PyTorch's attention. A step that is wrong is computed
again without what made it wrong, and so are all that follow.

All of it is queued behind the step, before its tokens are sampled: a step launched ahead changes nothing. The
keys and values that it writes are taken back, so that it leaves none of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Int64, Plan, packed_plan
from millstream_worker.engine.protocol.frames import Tried
from millstream_worker.engine.runner.attention.torch_backend import TorchAttention
from millstream_worker.engine.runner.device.gpu import Gpu
from millstream_worker.engine.runner.device.transfer import to_device
from millstream_worker.engine.runner.forward import Eager, Forward
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.self_check.deviation import Mismatch, compare_logits
from millstream_worker.engine.runner.self_check.findings import Findings

EVERY = 500  # decode steps; the first one is checked
_ROWS = 4

Off = frozenset[Tried]
_PLAIN = Off((Tried.ATTENTION, Tried.COMPILE_MODEL))


def wants_shadow(gpu: Gpu | None, model: Forward, *, compiled: bool) -> bool:
    """Whether anything of this device's steps is to be checked in service."""
    fast = model is not model.eager or compiled or model.eager.loaded.attention != "torch"
    return fast and gpu is not None and not gpu.tested


class ShadowCheck:
    """A `Forward` that checks another, `checked`; `findings` hears about it. `restore`: undoes the
    compilation; None if the model was not compiled."""

    def __init__(
        self,
        model: Forward,
        findings: Findings,
        restore: Callable[[], None] | None,
        every: int = EVERY,
    ) -> None:
        self.compared, self.worst = 0, 0.0
        self.checked = model
        self._findings = findings
        self._restore = restore
        self._every = every
        self._decodes = 0
        self._torch = TorchAttention(model.eager.storage)
        line = f"1 of {every} decode steps is checked in service, as nobody has tested such a device"
        findings.checks.append(line)
        findings.report(line)

    @property
    def eager(self) -> Eager:
        return self.checked.eager

    def run(self, plan: Plan) -> Tensor:
        logits = self.checked.run(plan)
        if plan.decodes < len(plan.query_lens):
            return logits
        self._decodes += 1
        return self._right(plan, logits) if self._decodes % self._every == 1 % self._every else logits

    def _right(self, plan: Plan, logits: Tensor) -> Tensor:
        """The step's logits; computed again if they are wrong."""
        rows = self._next_rows(len(plan.query_lens))
        try:
            want = self._expected(plan, rows)
        except (MemoryError, torch.OutOfMemoryError):  # of rows so long; the step itself has gone well
            return logits
        if not want.isfinite().all(-1).any():  # nothing is expected of these rows
            return logits
        try:
            self.worst = max(self.worst, self._compare(logits, want, rows))
        except Mismatch as error:
            return self._without_what_is_wrong(plan, want, rows, str(error))
        self.compared += 1
        return logits

    def _next_rows(self, count: int) -> Int64:
        """Segments of a step, other ones each time. Neighbours: what follows a row's draft token reads what
        all of its segments before have stored."""
        first = self._decodes // self._every * _ROWS % max(count - _ROWS + 1, 1)
        return np.arange(first, min(first + _ROWS, count))

    def _compare(self, logits: Tensor, want: Tensor, rows: Int64) -> float:
        got = logits[to_device(rows, logits.device)]
        what = f"a decode step of {len(logits)} rows in service"
        return compare_logits(got, want, what, self.eager.loaded.dtype)

    def _expected(self, plan: Plan, rows: Int64) -> Tensor:
        """Logits of these segments by the model's own code and PyTorch's attention."""
        part = _part(plan, rows, self.eager.storage.block_size)
        with _taken_back(self.eager.storage, part):
            return self._run_without(_PLAIN, part)

    def _without_what_is_wrong(self, plan: Plan, want: Tensor, rows: Int64, reason: str) -> Tensor:
        """Steps down from the first suspect without which the step is right. What is recorded was recorded
        from the other two, and goes with them."""
        recorded = self.checked is not self.eager
        single = [Tried.ATTENTION, *([Tried.COMPILE_MODEL] if self._restore else [])]
        suspects = [*([Off((Tried.CUDA_GRAPHS,))] if recorded else []), *(Off((one,)) for one in single)]
        for off in suspects:
            logits = self._run_without(off, plan)
            with contextlib.suppress(Mismatch):
                self._compare(logits, want, rows)
                break
        else:
            off = Off(single)
            logits = self._run_without(off, plan)
        self._step_down(off, reason)
        return logits

    def _run_without(self, off: Off, plan: Plan) -> Tensor:
        """Compute the step from Python, without these."""
        with contextlib.ExitStack() as stack:
            if Tried.ATTENTION in off:
                stack.enter_context(_attending(self.eager, self._torch))
            if Tried.COMPILE_MODEL in off and self._restore:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            return self.eager.run(plan)

    def _step_down(self, off: Off, reason: str) -> None:
        self.checked = eager = self.eager
        if Tried.ATTENTION in off:
            eager.attend_by(self._torch)
        if Tried.COMPILE_MODEL in off and self._restore:
            self._restore()
            self._restore = None
        for one in sorted(off):
            self._findings.step_down(one, reason)


def _part(plan: Plan, rows: Int64, block_size: int) -> Plan:
    """The step of these segments of a decode step alone; its tokens stand where they did."""
    part = packed_plan(
        np.ones(len(rows), np.int32), plan.kv_lens[rows], plan.block_tables[0][rows], block_size, samples=True
    )
    return replace(
        part,
        row_slots=plan.row_slots[rows],
        tokens=plan.tokens[rows],
        from_device=plan.from_device[rows],
    )


@contextlib.contextmanager
def _taken_back(storage: KVStorage, plan: Plan) -> Iterator[None]:
    """Restore the blocks that the step writes to, bit by bit."""
    blocks = to_device(np.unique(plan.slot_mapping[0] // storage.block_size), storage.device)
    pages = storage.copy_out(blocks)
    try:
        yield
    finally:
        storage.copy_in(blocks, pages)


@contextlib.contextmanager
def _attending(eager: Eager, attention: TorchAttention) -> Iterator[None]:
    own = eager.attention
    eager.attend_by(attention)
    try:
        yield
    finally:
        eager.attend_by(own)
