"""Packs what a GPU's machine lacks into one folder that git ignores (wheels, compiled kernels and layers, the
commit), and unpacks it there for the parts' processes.

The machine needs every package that the engine imports: MACHINE_HAS lists what it has, WHEELS what is packed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ops.gpu_survey.survey import scratch

ROOT = Path(__file__).parents[2]
CARRIED = ROOT / "out" / "for_gpu"
COMMIT = "commit"
# Installed wherever torch, transformers and accelerate are, but for pytest.
MACHINE_HAS = frozenset(
    {
        "accelerate", "filelock", "huggingface_hub", "msgpack", "numpy", "psutil", "pytest", "regex",
        "safetensors",
        "tokenizers", "torch", "transformers", "triton",
    }
)  # fmt: skip
WHEELS = (  # which the machine lacks
    "attrs", "gguf", "jsonschema", "jsonschema-specifications", "llguidance", "pillow", "referencing",
    "rpds-py",
)  # fmt: skip
HUMMING = "humming-kernels==0.1.19"  # for step 5
_CACHE, _CACHED = "cache.tar.gz", ("triton", "engine")
SOURCES = ("worker", "producer", "tests")
_PLATFORMS = ("2_28", "2_27", "2_17", "2_31")  # of glibc


def commit() -> str:
    """Returns the working tree's commit as git describes it; "unknown" without git."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return asked.stdout.strip() or "unknown"


def packed_commit(carried: Path = CARRIED) -> str:
    """Returns the commit of the working tree in which `pack` has run; "" if it has not."""
    noted = carried / COMMIT
    return noted.read_text().strip() if noted.exists() else ""


def pack(more: Sequence[str], carried: Path = CARRIED) -> None:
    """Download the wheels, for Python 3.12 on x86-64. `more`: requirements beside those of the engine."""
    wheels = carried / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    for old in wheels.glob("*.whl"):
        old.unlink()
    platforms = [f"--platform=manylinux_{glibc}_x86_64" for glibc in _PLATFORMS]
    subprocess.run(
        [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
            "--python-version=3.12", "--implementation=cp", *platforms, f"--dest={wheels}",
            *pins(WHEELS), *more,
        ],
        check=True,
    )  # fmt: skip
    (carried / COMMIT).write_text(commit() + "\n")


def pins(names: Sequence[str]) -> list[str]:
    """Returns the requirements of these packages in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    known = {line.partition("==")[0].lower(): line for line in lines}
    return [known[name] for name in names]


def pack_cache(carried: Path = CARRIED) -> None:
    """Pack the code that the parts have compiled. Tuning results are deleted: the null GPU times nothing."""
    for tuned in scratch().rglob("*.best_config"):
        tuned.unlink()
    carried.mkdir(parents=True, exist_ok=True)
    with tarfile.open(carried / _CACHE, "w:gz") as tar:
        for name in _CACHED:
            tar.add(scratch() / name, name)


def unpack(carried: Path = CARRIED) -> list[Path]:
    """Install the carried wheels into a folder of their own, and unpack the cache over what is there. Returns
    the folders of packages."""
    scratch().mkdir(parents=True, exist_ok=True)
    cache, wheels = carried / _CACHE, sorted(carried.glob("wheels/*.whl"))
    if cache.exists():
        with tarfile.open(cache) as tar:
            tar.extractall(scratch(), filter="data")
    if not wheels:
        return []
    site = scratch() / "packages"
    shutil.rmtree(site, ignore_errors=True)
    options = ("--quiet", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--upgrade")
    install = [sys.executable, "-m", "pip", "install", *options, f"--target={site}"]
    subprocess.run([*install, *wheels], check=True)
    return [site]


def part_environment(packages: Sequence[Path], own: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a part's process. Carried packages come last: the machine's own ones win."""
    folders = [*filter(None, [own.get("PYTHONPATH")]), *(ROOT / name for name in SOURCES)]
    found = {
        **own,
        "PYTHONPATH": os.pathsep.join(map(str, [*folders, ROOT, *packages])),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TRITON_CACHE_DIR": str(scratch() / _CACHED[0]),
    }
    found.pop("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", None)  # NVIDIA's images set it: products would be of TF32
    found.pop("CXX", None)  # torch finds compiled code again by the compiler's name, too
    return found
