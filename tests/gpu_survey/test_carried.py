"""What travels to a GPU's machine: it lacks nothing that the engine imports."""

from __future__ import annotations

import ast
import os
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from ops.gpu_survey import carried

ENGINE = carried.ROOT / "worker" / "millstream_worker" / "engine"
OURS = {"millstream_worker", "ops", "support"}


BESIDE = (  # what the survey's processes import of the rest
    "worker/millstream_worker/engine_link/__init__.py",
    "worker/millstream_worker/engine_link/link.py",
    "worker/millstream_worker/engine_link/link.py",
    "ops/bench/engines/adapters/__init__.py",
    "ops/bench/engines/adapters/interface.py",
    "ops/bench/engines/adapters/millstream.py",
    "ops/bench/load/arrivals.py",
    "ops/bench/load/engine.py",
    "ops/bench/device_clock.py",
    "ops/bench/measures.py",
    "ops/bench/workloads.py",
)


def third_party(files: Iterable[Path]) -> set[str]:
    """The packages that these files import."""
    found = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - OURS - sys.stdlib_module_names


def test_every_import_of_the_survey_is_installed_or_carried() -> None:
    parts = carried.ROOT / "ops" / "gpu_survey" / "parts"
    files = [*ENGINE.rglob("*.py"), *parts.rglob("*.py"), *(carried.ROOT / path for path in BESIDE)]
    imported = third_party(files) - {"humming"}  # of step 5, packed on request
    assert {"torch", "llguidance", "gguf"} <= imported
    wheels = {{"pillow": "PIL"}.get(name, name.replace("-", "_")) for name in carried.WHEELS}
    assert sorted(imported - carried.MACHINE_HAS - wheels) == []


def test_wheels_have_the_versions_of_the_tests() -> None:
    assert [pin.partition("==")[0] for pin in carried.pins(carried.WHEELS)] == list(carried.WHEELS)


def test_the_cache_comes_back_as_packed_without_timings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carried, "scratch", lambda: tmp_path / "scratch")
    for name in ("triton/a/kernel.cubin", "triton/a/kernel.best_config", "engine/compiled/b", "models/c"):
        file = tmp_path / "scratch" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    carried.pack_cache(tmp_path / "carried")
    with tarfile.open(tmp_path / "carried" / "cache.tar.gz") as tar:
        names = {one.name for one in tar if one.isfile()}
    assert names == {"triton/a/kernel.cubin", "engine/compiled/b"}
    monkeypatch.setattr(carried, "scratch", lambda: tmp_path / "elsewhere")
    assert carried.unpack(tmp_path / "carried") == []
    assert (tmp_path / "elsewhere/triton/a/kernel.cubin").read_text() == "triton/a/kernel.cubin"


def test_a_part_finds_our_packages_first_and_has_tf32_off() -> None:
    own = {"PYTHONPATH": "mine", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1", "KEPT": "yes"}
    found = carried.part_environment([Path("carried")], own)
    paths = found["PYTHONPATH"].split(os.pathsep)
    assert paths == ["mine", *(str(carried.ROOT / one) for one in ("worker", "producer", "tests")),
                     str(carried.ROOT), "carried"]  # fmt: skip
    assert "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE" not in found
    assert found["KEPT"] == "yes"


def test_the_packed_commit_is_read(tmp_path: Path) -> None:
    assert carried.packed_commit(tmp_path) == ""
    (tmp_path / carried.COMMIT).write_text("abc1234\n")
    assert carried.packed_commit(tmp_path) == "abc1234"
