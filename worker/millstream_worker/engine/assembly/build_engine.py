"""Joins the parts of an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from millstream_worker.engine.assembly.checked_model import load_checked
from millstream_worker.engine.assembly.chosen_device import choose_device
from millstream_worker.engine.assembly.engine_grammars import grammars_for
from millstream_worker.engine.assembly.fitted_memory import fit_memory
from millstream_worker.engine.assembly.model_images import load_images
from millstream_worker.engine.assembly.model_runner import runner_for, step_form
from millstream_worker.engine.assembly.sampling_choice import choose_sampling
from millstream_worker.engine.assembly.step_scheduler import describe, scheduler_for
from millstream_worker.engine.compilation import Compilation
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.process import CannotLoad, Report
from millstream_worker.engine.protocol.config import EngineConfig, EngineInfo
from millstream_worker.engine.runner.checkpoint.checkpoint import Checkpoint, CheckpointError, resolve
from millstream_worker.engine.runner.model_config.support import UnsupportedModel
from millstream_worker.engine.runner.self_check.findings import Findings

if TYPE_CHECKING:
    from millstream_worker.engine.runner.runner import Launched


def build(
    config: EngineConfig,
    report: Report,
    mark: Callable[[], None] = lambda: None,
    checkpoint: Checkpoint | None = None,
) -> tuple[Engine[Launched], EngineInfo]:
    """An engine ready for requests. `mark` is called as it gets on: with each weight read, later with each
    layer computed. `checkpoint`: the config's model, where it was found already. Raises CannotLoad with one
    clear message.
    """
    try:
        return _build(config, report, mark, checkpoint or resolve(config.model, config.cache_dir, report))
    except CheckpointError as error:  # names the model itself
        raise CannotLoad(str(error)) from error
    except torch.OutOfMemoryError as error:
        reason = str(error).partition("\n")[0]
        raise CannotLoad(
            f"model {config.model!r} does not fit on device {config.device!r}: {reason} Use a smaller model, "
            f"a smaller dtype (it is {config.dtype!r}), or less kv_memory (it is {config.kv_memory!r})"
        ) from error
    except (UnsupportedModel, ValueError, OSError) as error:
        raise CannotLoad(f"model {config.model!r}: {error}") from error


def _build(
    config: EngineConfig, report: Report, mark: Callable[[], None], checkpoint: Checkpoint
) -> tuple[Engine[Launched], EngineInfo]:
    chosen = choose_device(config, report)
    findings = Findings(report)
    loaded = load_checked(config, checkpoint, chosen, findings, mark)
    chooser = choose_sampling(loaded, findings)
    compilation = Compilation(config, loaded, findings, mark)
    compilation.at_start()
    images = load_images(config, checkpoint, loaded, findings, mark)
    memory = fit_memory(
        config, loaded, chooser, images=images.memory, records=chosen.records, report=report, mark=mark
    )
    info = describe(checkpoint, loaded, memory, images, report)
    runner, swap = runner_for(loaded, memory, chooser, images, report, mark)
    eager = runner.model.eager

    def choose_form() -> None:
        runner.model = step_form(eager, memory, findings, records=chosen.records, compiled=compilation.done)

    def compiled_later() -> None:
        eager.reconnect()
        choose_form()

    choose_form()
    depth = 1 if chosen.gpu else 0  # on the CPU launching computes: nothing runs ahead
    scheduler = scheduler_for(memory, info, images, depth, swap)
    info = replace(info, self_check=", ".join(findings.checks), fallbacks=tuple(findings.fallbacks))
    later = compilation.later(compiled_later)
    grammars, store = grammars_for(info), images.features
    return Engine(scheduler, runner, depth=depth, later=later, grammars=grammars, images=store), info
