"""Builds the null GPU: an environment with torch's build for CUDA, and libraries that stand in for CUDA's.
5 GB and some minutes, once. Needs g++, gcc, objdump."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ops.gpu_survey.null_gpu.sources import write_sources

HERE = Path(__file__).parent
FOLDER = Path(__file__).parents[3] / "out" / "null_gpu"
LIBRARIES = ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13")
DRIVER = "libcuda.so.1"
_HEADERS = "nvidia-cuda-crt==13.0.88"  # which torch's own packages lack


def built(folder: Path = FOLDER) -> bool:
    return all((folder / name).exists() for name in (*LIBRARIES, DRIVER))


def build(folder: Path = FOLDER) -> None:
    """Raises CalledProcessError."""
    print(f"building the null GPU in {folder} (once; 5 GB and some minutes)", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([_python312(), "-m", "venv", str(folder / "venv")], check=True)
    _pip(python, "install", "--no-compile", "-r", str(HERE / "requirements.txt"))
    headers = folder / "crt"
    if not headers.exists():
        with tempfile.TemporaryDirectory() as wheels:
            _pip(python, "download", "--no-deps", "-d", wheels, _HEADERS)
            [wheel] = Path(wheels).glob("*.whl")
            shutil.unpack_archive(wheel, headers, "zip")
    [torch] = folder.glob("venv/lib/python3*/site-packages/torch")
    write_sources(torch, folder, DRIVER, LIBRARIES[0])
    _compile(folder, torch.parent / "nvidia/cu13/include", headers / "nvidia/cu13/include")


def _python312() -> str:
    """The GPU machine's Python, if it is here: launchers that Triton has compiled belong to one version."""
    there = shutil.which("python3.12")
    works = there and subprocess.run([there, "-c", ""], capture_output=True, check=False).returncode == 0
    return there if there and works else sys.executable


def _pip(python: Path, *arguments: str) -> None:
    own = {name: text for name, text in os.environ.items() if name != "PIP_CONSTRAINT"}
    subprocess.run([python, "-m", "pip", arguments[0], "--quiet", *arguments[1:]], check=True, env=own)


def _compile(folder: Path, *includes: Path) -> None:
    flags = ("-O1", "-shared", "-fPIC", "-w")
    runtime, *others = LIBRARIES
    _run(
        folder, "g++", *flags, "-I.", *(f"-I{one}" for one in includes), "-o", runtime,
        str(HERE / "null_gpu.cpp"), *_named(runtime), "-ldl",
    )  # fmt: skip
    _run(folder, "gcc", *flags, "-o", DRIVER, "cuda.c", f"-Wl,-soname,{DRIVER}", "-ldl")
    for library in others:
        _run(folder, "gcc", *flags, "-o", library, f"{_stem(library)}.c", *_named(library), f"./{runtime}")


def _named(library: str) -> tuple[str, str]:
    return f"-Wl,-soname,{library}", f"-Wl,--version-script={_stem(library)}.map"


def _stem(library: str) -> str:
    return library.partition(".")[0]


def _run(folder: Path, *command: str) -> None:
    subprocess.run(command, cwd=folder, check=True)
