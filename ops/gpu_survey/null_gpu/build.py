"""Builds the null GPU: an environment with torch's build for CUDA, and libraries that stand in for CUDA's.
5 GB and some minutes, once. Needs g++, gcc and binutils."""

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
_FLAGS = ("-O1", "-fPIC")


def built(folder: Path = FOLDER) -> bool:
    """Whether it is there, and none of its sources is newer."""
    libraries = [folder / name for name in (*LIBRARIES, DRIVER)]
    if not all(library.exists() for library in libraries):
        return False
    newest = max(file.stat().st_mtime for file in HERE.iterdir() if file.is_file())
    return newest <= min(library.stat().st_mtime for library in libraries)


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
    compile_libraries(folder)


def compile_libraries(folder: Path) -> None:
    """In a folder that has the rest. Raises CalledProcessError."""
    [torch] = folder.glob("venv/lib/python3*/site-packages/torch")
    includes = (f"-I{root / 'nvidia/cu13/include'}" for root in (torch.parent, folder / "crt"))
    sources = sorted(HERE.glob("*.cpp"))
    objects = [folder / f"{source.stem}.o" for source in sources]
    _run(folder, "g++", "-std=c++17", "-Wall", *_FLAGS, "-c", *includes, *map(str, sources))
    runtime, *others = LIBRARIES
    write_sources(torch, folder, runtime, objects)
    own = (*map(str, objects), "missing.cpp", "-ldl")
    _run(folder, "g++", *_FLAGS, "-shared", "-o", runtime, *own, *_named(runtime))
    c = ("gcc", "-w", *_FLAGS, "-shared")
    _run(folder, *c, "-o", DRIVER, "cuda.c", f"-Wl,-soname,{DRIVER}", "-ldl")
    for library in others:
        _run(folder, *c, "-o", library, f"{_stem(library)}.c", *_named(library), f"./{runtime}")


def _python312() -> str:
    """The GPU machine's Python, if it is here: launchers that Triton has compiled belong to one version."""
    there = shutil.which("python3.12")
    works = there and subprocess.run([there, "-c", ""], capture_output=True, check=False).returncode == 0
    return there if there and works else sys.executable


def _pip(python: Path, *arguments: str) -> None:
    own = {name: text for name, text in os.environ.items() if name != "PIP_CONSTRAINT"}
    subprocess.run([python, "-m", "pip", arguments[0], "--quiet", *arguments[1:]], check=True, env=own)


def _named(library: str) -> tuple[str, str]:
    return f"-Wl,-soname,{library}", f"-Wl,--version-script={_stem(library)}.map"


def _stem(library: str) -> str:
    return library.partition(".")[0]


def _run(folder: Path, *command: str) -> None:
    subprocess.run(command, cwd=folder, check=True)
