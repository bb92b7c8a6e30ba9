"""What a GPU makes of the engine, step by step: ops/pages/running_on_a_gpu.md says what each step answers.

    python -m ops.gpu_survey run 1                  step 1, on this machine's GPU
    python -m ops.gpu_survey run 1 --device null    on the null GPU, which computes nothing; built at first
    python -m ops.gpu_survey run 1 --device cpu     in tiny form, without a GPU
    python -m ops.gpu_survey list                   the steps, their parts and limits
    python -m ops.gpu_survey pack [--humming]       packs what a GPU's machine lacks into out/for_gpu
    python -m ops.gpu_survey merge REPORT           appends a report.json to ops/bench/gpu_runs.json
    python -m ops.gpu_survey show                   the numbers of all reports
    python -m ops.gpu_survey draw                   pictures of the newest, into ops/bench/pictures

`run` needs the working tree and what the engine imports, or what `pack` has packed; no server, no checkpoint,
no network. It exits with status 1 where a part has failed. `pack` compiles kernels and layers for Hopper by
the null GPU, so that a GPU's time does not go into compilers.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ops.gpu_survey import carried, gpu_runs
from ops.gpu_survey.ladder import LADDER, chosen
from ops.gpu_survey.null_gpu.__main__ import H200, active, run_on_null_gpu
from ops.gpu_survey.report import Report
from ops.gpu_survey.step_run import StepRun
from ops.gpu_survey.survey import scratch

_OUT = Path(os.environ.get("OUT", "out/gpu_survey"))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.set_defaults(call=_run)
    run.add_argument("step", choices=[*LADDER])
    run.add_argument("--device", choices=("cuda", "null", "cpu"), default="cuda")
    run.add_argument("--parts", default="", help="only these, separated by commas")
    run.add_argument("--seconds", type=float, default=340.0, help="for all parts together, on a GPU")
    run.add_argument("--out", type=Path, default=_OUT, help="folder of the report; $OUT or %(default)s")
    commands.add_parser("list").set_defaults(call=_list)
    pack = commands.add_parser("pack")
    pack.set_defaults(call=_pack)
    pack.add_argument("--humming", action="store_true", help="also humming-kernels, for step 5")
    told = "no compiled code, which takes minutes: each engine takes some 20 s longer to start there"
    pack.add_argument("--wheels-only", action="store_true", help=told)
    merge = commands.add_parser("merge")
    merge.set_defaults(call=_merge)
    merge.add_argument("report", type=Path)
    commands.add_parser("show").set_defaults(call=_show)
    commands.add_parser("draw").set_defaults(call=_draw)
    options = parser.parse_args(arguments)
    status: int = options.call(options)
    return status


def _run(options: argparse.Namespace) -> int:
    if options.device == "null" and not active():
        return _run_on_null_gpu(options.step, options.parts, options.seconds, options.out)
    try:
        groups = chosen(options.step, frozenset(filter(None, options.parts.split(","))))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    tell = partial(print, flush=True)
    # A GPU's machine has a copy of the working tree, which may have no .git, or another commit's.
    commit = (options.device == "cuda" and carried.packed_commit()) or carried.commit()
    with tempfile.TemporaryDirectory(prefix="gpu-survey-") as folder:
        report = Report(options.step, options.device, commit, Path(folder), options.out)
        environment = carried.part_environment(carried.unpack() if options.device == "cuda" else [])
        StepRun(options.device, options.seconds, Path(folder), environment, report, tell).run(groups)
    tell("\n".join(report.summary()))
    return 0 if report.sound else 1


def _run_on_null_gpu(
    step: str, parts: str, seconds: float, out: Path, card: Mapping[str, str] | None = None
) -> int:
    arguments = ["run", step, "--device=null", f"--parts={parts}", f"--seconds={seconds}", f"--out={out}"]
    return run_on_null_gpu(["python", "-m", "ops.gpu_survey", *arguments], card)


def _list(_: argparse.Namespace) -> int:
    for step, groups in LADDER.items():  # the last one, "warm", is what `pack` compiles by
        named = ("+".join(f"{part.name} {part.limit_s:.0f} s" for part in group) for group in groups)
        print(f"{step}: {'; '.join(named)}")
    return 0


def _pack(options: argparse.Namespace) -> int:
    carried.pack([carried.HUMMING] if options.humming else [])
    if options.wheels_only:
        return 0
    shutil.rmtree(scratch(), ignore_errors=True)
    # Compiled layers are found again by the name of the card, kernels are not.
    for card, parts in (({}, ""), (H200, "warm8b,warm06b,warm8b-fp8")):
        if status := _run_on_null_gpu("warm", parts, 600.0, _OUT, card):
            return status
    carried.pack_cache()
    print(f"take {carried.CARRIED} along; there: python3 -m ops.gpu_survey run 1")
    return 0


def _merge(options: argparse.Namespace) -> int:
    gpu_runs.merge(options.report)
    return 0


def _draw(_: argparse.Namespace) -> int:
    from ops.gpu_survey.gpu_pictures import draw_all  # needs matplotlib

    print("\n".join(map(str, draw_all())))
    return 0


def _show(_: argparse.Namespace) -> int:
    print(*gpu_runs.lines(), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
