"""Compiles the library once for this machine and keeps it.

<cache>/native/kernels-<digest>.so     digest: of sources, flags, compiler and processor

Any number of processes may do so at once: each compiles in a folder of its own and moves the result into
place in one step. Behind a library stands the digest of its bytes: one of which a crash of the machine, or a
full disk, has left a part is compiled anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from millstream_worker.engine.protocol.frames import LoadStep
from millstream_worker.engine.runner.checkpoint.trust import refuse_if_written_by_others
from millstream_worker.engine.runner.native.compiler import CannotBuild, run, run_all
from millstream_worker.engine.runner.native.library import Library

Report = Callable[[str], None]

FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC")
_SOURCES = Path(__file__).parent / "src"
_COMPILERS = ("g++", "clang++", "c++")
_UNDER_WAY = "compiling-"
_ABANDONED_S = 3600.0


def build(
    cache: Path,
    flags: tuple[str, ...] = FLAGS,
    report: Report = lambda line: None,
    mark: Callable[[], None] = lambda: None,
) -> Library:
    """Returns the library, from `cache` or compiled now: that takes some seconds of an idle processor. It is
    told to `report`, and `mark` is called meanwhile. Raises CannotBuild.
    """
    try:
        _clear(cache / "native")
        compiler, version = _compiler(mark)
        file = cache / "native" / f"kernels-{_digest(compiler, version, flags)}.so"
        if not _is_whole(file):
            report(f"{LoadStep.COMPILE_NATIVE}, once for this processor")
            _compile(compiler, flags, file, mark)
        refuse_if_written_by_others(file.parent, file)  # loading it runs it
        return Library(file)
    except OSError as error:
        raise CannotBuild(str(error)) from error


def _compiler(mark: Callable[[], None] = lambda: None) -> tuple[tuple[str, ...], str]:
    """Returns the compiler's command, and the first line of what it says about its version."""
    named = os.environ.get("CXX", "")
    try:
        commands = [shlex.split(named)] if named.strip() else [[name] for name in _COMPILERS]
    except ValueError as error:  # a quotation mark without another
        raise CannotBuild(f"CXX is {named!r}, which is no command: {error}") from error
    found = [(os.path.abspath(path), *more) for name, *more in commands if (path := shutil.which(name))]
    if not found:
        raise CannotBuild(f"there is no C++ compiler ({named or ', '.join(_COMPILERS)})")
    return found[0], run(*found[0], "--version", mark=mark).partition("\n")[0]


def _compile(
    compiler: tuple[str, ...], flags: tuple[str, ...], file: Path, mark: Callable[[], None] = lambda: None
) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=file.parent, prefix=_UNDER_WAY, ignore_cleanup_errors=True
    ) as folder:
        linked = Path(folder) / file.name
        sources = sorted(_SOURCES.glob("*.cpp"), key=lambda source: source.stat().st_size, reverse=True)
        commands = [(*compiler, *flags, "-c", str(source)) for source in sources]  # the longest first
        run_all(commands, folder=folder, mark=mark)
        # Without -fopenmp: a runtime of its own would bring a second team of threads.
        compiled = [f"{source.stem}.o" for source in sorted(sources)]
        run(*compiler, "-shared", *compiled, "-o", file.name, folder=folder, mark=mark)
        content = linked.read_bytes()
        linked.write_bytes(content + _seal(content))
        linked.chmod(0o700)
        linked.replace(file)


def _clear(folder: Path) -> None:
    """Removes folders of killed compilers."""
    for left in folder.glob(f"{_UNDER_WAY}*"):
        with contextlib.suppress(OSError):  # another clears, too
            if time.time() - left.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(left)


def _seal(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _is_whole(file: Path) -> bool:
    """True if the library's digest matches: a truncated file would crash the process."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return False
    size = hashlib.sha256().digest_size
    return content[-size:] == _seal(content[:-size])


def _digest(compiler: tuple[str, ...], version: str, flags: tuple[str, ...], sources: Path = _SOURCES) -> str:
    digest = hashlib.sha256("\0".join((*compiler, version, *flags, processor())).encode())
    for source in sorted((*sources.glob("*.cpp"), *sources.glob("*.h"))):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def processor() -> str:
    """Returns what this CPU's instructions depend on: a home may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    kinds = ("model name", "flags", "Features", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(kinds)))
