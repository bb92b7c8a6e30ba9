"""Tries mutants: each in a copy of the checkout, by the tests that cover its line."""

from __future__ import annotations

import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import coverage
import pytest
from ops.mutants.choosing import AREAS, SEED, Mutant, functions_of, sources

ROOT = Path(__file__).parents[2]
LIMIT_S = 240.0  # for the tests of one mutant
FAST = ("-q", "-n", "0", "-m", "not slow and not alone")  # tests, in one process
MOST_TESTS = 60  # of one mutant: the more a line is run, the sooner one of them fails


@dataclass(frozen=True, slots=True)
class Position:
    path: Path
    row: int  # from 0


def find(root: Path, mutant: Mutant) -> Position | None:
    """The mutant's line: in its file, else in the one file of the area that has it."""
    area = sources(root, AREAS[mutant.area])
    own = [path for path in area if str(path.relative_to(root)) == mutant.path]
    for paths in (own, area):
        places = [place for path in paths if (place := _find_in(path, mutant))]
        if len(places) == 1:
            return places[0]
    return None


def _find_in(path: Path, mutant: Mutant) -> Position | None:
    lines = path.read_text().splitlines()
    functions = functions_of(path, lines)
    rows = [
        r for r, line in enumerate(lines) if line.strip() == mutant.line and functions[r] == mutant.function
    ]
    return Position(path, rows[mutant.nth]) if mutant.nth < len(rows) else None


def apply(place: Position, mutant: Mutant) -> str:
    """Change the file; its text before."""
    before = place.path.read_text()
    lines = before.splitlines(keepends=True)
    line = lines[place.row]
    at = len(line) - len(line.lstrip()) + mutant.column
    assert line[at:].startswith(mutant.old), mutant
    lines[place.row] = line[:at] + mutant.new + line[at + len(mutant.old) :]
    place.path.write_text("".join(lines))
    return before


def covering(root: Path, areas: Iterable[str]) -> Mapping[tuple[str, int], list[str]]:
    """Tests by file and line (from 0), from a run of all fast tests of the areas, which must pass. Of Lua
    scripts no line is seen."""
    tests: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for name in areas:
        data = root / f".coverage-{name}"
        packages = f"--include={','.join(AREAS[name].sources)}"
        command = [
            "-m",
            "coverage",
            "run",
            f"--data-file={data}",
            packages,
            "-m",
            "pytest",
            "-p",
            "ops.mutants.contexts",
        ]
        if _python(root, [*command, *AREAS[name].tests, *FAST], None) != pytest.ExitCode.OK:
            raise SystemExit(f"{name}: its tests fail without a mutant")
        seen = coverage.CoverageData(str(data))
        seen.read()
        for path in seen.measured_files():
            for line, contexts in seen.contexts_by_lineno(path).items():
                tests[str(Path(path).relative_to(root)), line - 1] += [test for test in contexts if test]
    return tests


def verdict(root: Path, mutant: Mutant, tests: Mapping[tuple[str, int], list[str]]) -> str:
    """killed, survived, not covered or gone."""
    if (place := find(root, mutant)) is None:
        return "gone"
    chosen = noticing_tests(root, mutant, place, tests)
    if not chosen:
        return "not covered"
    chosen = random.Random(SEED).sample(chosen, min(MOST_TESTS, len(chosen)))
    before = apply(place, mutant)
    try:
        status = _python(root, ["-m", "pytest", "-x", "-p", "no:randomly", *FAST, *chosen], LIMIT_S)
    finally:
        place.path.write_text(before)
    return "survived" if status == pytest.ExitCode.OK else "killed"


def noticing_tests(
    root: Path, mutant: Mutant, place: Position, tests: Mapping[tuple[str, int], list[str]]
) -> list[str]:
    """Tests that run the line; of one outside of functions, which runs at the import, those of its file."""
    if mutant.area == "lua":
        return list(AREAS[mutant.area].tests)
    path = str(place.path.relative_to(root))
    if mutant.function:
        return sorted(set(tests.get((path, place.row), ())))
    return sorted({test for (file, _), names in tests.items() if file == path for test in names})


def _python(root: Path, arguments: Sequence[str], limit_s: float | None) -> int | None:
    """Under this interpreter, with the packages of `root`; None where it took too long."""
    own = os.pathsep.join(str(root / part) for part in ("producer", "worker", "."))
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=root,
        env=os.environ | {"PYTHONPATH": own, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return None


def run(mutants: Sequence[Mutant], workers: int) -> dict[Mutant, str]:
    """Each in one of as many copies of this checkout as there are workers."""
    verdicts: dict[Mutant, str] = {}
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in mutants:
        waiting.put(mutant)
    with tempfile.TemporaryDirectory(prefix="millstream-mutants-") as folder:
        copies = [Path(folder) / str(number) for number in range(workers)]
        for copy in copies:
            shutil.copytree(
                ROOT, copy, ignore=shutil.ignore_patterns(".venv", ".git", "__pycache__", ".*_cache")
            )
        tests = covering(copies[0], {mutant.area for mutant in mutants})

        def work(copy: Path) -> None:
            while (mutant := _next(waiting)) is not None:
                verdicts[mutant] = verdict(copy, mutant, tests)
                print(
                    f"{len(verdicts)}/{len(mutants)} {verdicts[mutant]}: {mutant}",
                    file=sys.stderr,
                    flush=True,
                )

        threads = [threading.Thread(target=work, args=(copy,)) for copy in copies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return verdicts


def _next(waiting: queue.SimpleQueue[Mutant]) -> Mutant | None:
    try:
        return waiting.get_nowait()
    except queue.Empty:
        return None
