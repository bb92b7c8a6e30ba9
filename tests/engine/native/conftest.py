"""The compiled library, made once for all tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from millstream_worker.engine.runner.native import build as building
from millstream_worker.engine.runner.native.attention import NativeAttention
from millstream_worker.engine.runner.native.build import FLAGS, build, processor
from millstream_worker.engine.runner.native.library import Library
from millstream_worker.engine.runner.storage import KVStorage

Backend = Callable[[KVStorage], NativeAttention]
BFLOAT16 = {
    "pairs": ("-DPAIRS_PAY=true", "-U__AMX_BF16__"),
    "float32": ("-DPAIRS_PAY=false", "-U__AMX_BF16__"),
    "tiles": ("-include", str(Path(__file__).with_name("emulated_tiles.h"))),
}
PLAIN = tuple(flag for flag in FLAGS if flag != "-march=native")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def library(cache: Path) -> Library:
    return build(cache)


@pytest.fixture
def native(library: Library) -> Backend:
    return partial(NativeAttention, library=library)


@pytest.fixture(scope="session")
def plain_library(cache: Path) -> Library:
    """For any processor of this kind: no wide vectors, no products of pairs."""
    return build(cache, PLAIN)


@pytest.fixture(scope="session")
def avx2_library(cache: Path) -> Library:
    """For processors that have nothing wider."""
    if not {"avx2", "fma"} <= set(processor().split()):
        pytest.skip("needs AVX2")
    return build(cache, (*PLAIN, "-mavx2", "-mfma"))


@pytest.fixture(scope="session")
def compiler_defines(cache: Path) -> frozenset[str]:
    """The macros of the processor that the compiler compiles for."""
    command, _ = building._compiler()
    return frozenset(building._run(*command, *FLAGS, "-dM", "-E", "-x", "c++", os.devnull).split())


@pytest.fixture(scope="session", params=BFLOAT16)
def bfloat16_library(
    request: pytest.FixtureRequest, cache: Path, compiler_defines: frozenset[str]
) -> Library:
    """As it would be where products of pairs are faster, where they are not, and where there are tiles."""
    if "__AVX512BF16__" not in compiler_defines:
        pytest.skip("needs AVX-512 with bfloat16")
    library = build(cache, (*FLAGS, *BFLOAT16[request.param]))
    assert library.bfloat16_products == request.param
    return library
