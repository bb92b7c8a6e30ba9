"""The compiled libraries, and the headers of torch's compiler: each is made once, for all test processes and
all runs in this checkout."""

from __future__ import annotations

import fcntl
import shutil
from functools import cache
from pathlib import Path
from zlib import crc32

import pytest

from millstream_worker.engine.runner.native import build as building
from millstream_worker.engine.runner.native.build import FLAGS, build
from millstream_worker.engine.runner.native.library import Library

CACHE = Path(__file__).parents[3] / ".pytest_cache" / "libraries"


def built(flags: tuple[str, ...] = FLAGS) -> Library:
    """One process builds it; others that need the same wait for that."""
    if shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")
    CACHE.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (CACHE / f"lock-{crc32(repr(flags).encode())}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build(CACHE, flags)


@cache
def shared_cache() -> str:
    """Returns the folder in which an engine finds its library; it is built if there is a compiler."""
    if shutil.which("g++") is not None:
        built()
    return str(CACHE)


def script(folder: Path, lines: bytes) -> str:
    """A command that is started as a compiler."""
    compiler = folder / "compiler"
    compiler.write_bytes(b"#!/bin/sh\n" + lines)
    compiler.chmod(0o700)
    return str(compiler)


def share_headers(compiled: Path) -> Path:
    """Have the folders of compiled models in this one use the same headers: to compile those takes as long as
    a small model."""
    shared = CACHE.parent / "headers"
    for folder in (shared, compiled):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (compiled / "headers").symlink_to(shared)
    return compiled


def put_into(cache: Path) -> Path:
    """The library that an engine would compile into this folder; without a compiler the test is skipped."""
    built()
    share_headers(cache / "compiled")
    name = f"kernels-{building._digest(*building._compiler(), FLAGS)}.so"
    (cache / "native").mkdir(mode=0o700)
    shutil.copy(CACHE / "native" / name, cache / "native" / name)
    return cache
