"""What the page about GPUs names is there: parts, files and what is in them, lines that its patches
change, figures of the committed reports."""

from __future__ import annotations

import csv
import re

from ops.gpu_survey import gpu_runs
from ops.gpu_survey.carried import ROOT
from ops.gpu_survey.expected import VLLM_H200
from ops.gpu_survey.ladder import LADDER
from support.engine.kernel_matrix import COLUMNS, TABLE

PAGE = (ROOT / "ops" / "pages" / "running_on_a_gpu.md").read_text("utf-8")
WORKER = ROOT / "worker" / "millstream_worker"
WORKLOADS = ("decode", "document", "shared", "shareddoc", "ragged", "single")
# Ours on one H200, expected before any run: arithmetic from measured rates of products and memory.
EXPECTED: dict[str, dict[str, tuple[float, float]]] = {
    "llama8b": {
        "decode": (18500, 20000), "document": (3600, 3850), "shared": (17000, 19000),
        "shareddoc": (9500, 12000), "ragged": (12500, 14500), "single": (4.8, 5.5),
    },
    "qwen06b": {
        "decode": (55000, 65000), "document": (16000, 19000), "shared": (35000, 45000),
        "shareddoc": (25000, 35000), "ragged": (40000, 50000), "single": (1.2, 1.5),
    },
}  # fmt: skip


def source(path: str) -> str:
    """Of a path from the root, or within the worker."""
    return next(root / path for root in (ROOT, WORKER) if (root / path).is_file()).read_text("utf-8")


def section(name: str) -> list[list[str]]:
    """The cells of the rows of a table between two marks."""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", PAGE, re.DOTALL)
    assert found
    rows = [line.strip()[1:-1].split("|") for line in found[1].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows]


def test_every_symbol_is_in_its_file() -> None:
    named = re.findall(r"`([\w/.]+\.py):(\w+)`", PAGE)
    assert len(named) >= 15
    assert [
        one for one in named if not re.search(rf"^\s*(def |class )?{one[1]}\b", source(one[0]), re.M)
    ] == []


def test_every_patch_changes_a_line_that_is_there() -> None:
    rows = section("patches")[2:]
    assert [row[0] for row in rows] == ["B", "C", "D", "E"]
    for _, path, line, becomes in rows:
        assert source(path.strip("`")).count(line.strip("`")) == 1, line
        assert becomes != line


def test_the_ladder_has_the_parts_of_the_survey() -> None:
    rows = re.findall(r"^\| (\d) \| (.*?) \|", PAGE, re.MULTILINE)
    found = {step: re.findall(r"`([\w-]+)`", parts) for step, parts in rows}
    machine = LADDER["1"][0][0].name
    for step, parts in found.items():
        own = {part.name for group in LADDER[step] for part in group}
        assert {*parts} | {machine} == own
    assert {*found} == {*LADDER} - {"warm"}


def test_every_figure_is_of_a_committed_report_or_expected() -> None:
    head, _, *rows = section("figures")
    assert tuple(head[2:]) == WORKLOADS
    measured = {
        (run["date"], one["numbers"]["model"], one["numbers"]["workload"]): one["numbers"]
        for run in gpu_runs.read()
        for part in run["parts"]
        for one in part["findings"]
        if one.get("numbers", {}).get("temperature") == 0.0
        and part["environment"].get("SURVEY_ENGINE") is None
    }
    dated = 0
    for model, who, *cells in rows:
        date = re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d", who)
        for workload, cell in zip(WORKLOADS, cells, strict=True):
            if date:
                numbers = measured.get((date[0], model, workload), {})
                assert cell == shown(workload, numbers) if numbers else cell == "–"
                dated += bool(numbers)
            else:
                known = VLLM_H200 if "vLLM" in who else EXPECTED
                assert cell == text_of(workload, known[model].get(workload)), (who, workload)
    assert dated >= 10


def shown(workload: str, numbers: dict[str, float]) -> str:
    return text_of(workload, 1e3 / numbers["tokens_s"] if workload == "single" else numbers["tokens_s"])


def text_of(workload: str, value: float | tuple[float, float] | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, tuple):
        return " to ".join(text_of(workload, one) for one in value)
    return f"{value:.3f}" if workload == "single" else f"{value:,.0f}"


def test_the_committed_table_of_kernels_has_no_hazard() -> None:
    with TABLE.open(encoding="utf-8") as file:
        rows = csv.DictReader(file)
        assert tuple(rows.fieldnames or ()) == COLUMNS
        assert {row["hazards"] for row in rows} == {"0"}
