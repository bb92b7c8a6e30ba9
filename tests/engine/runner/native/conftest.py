"""The compiled libraries."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.engine.libraries import built, put_into

from millstream_worker.engine.runner.attention.native.native_backend import NativeAttention
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.native import build as building
from millstream_worker.engine.runner.native import compiler
from millstream_worker.engine.runner.native.build import FLAGS, processor
from millstream_worker.engine.runner.native.library import Library

Backend = Callable[[KVStorage], NativeAttention]
BFLOAT16 = {
    "pairs": ("-DPAIRS_PAY=true", "-U__AMX_BF16__"),
    "float32": ("-DPAIRS_PAY=false", "-U__AMX_BF16__"),
    "tiles": ("-include", str(Path(__file__).with_name("emulated_tiles.h"))),
}
AVX2 = ("-mavx2", "-mfma", "-mf16c")
# What is built beside an engine's own library shows that its sources are right; it takes half the time.
QUICK = (*FLAGS, "-O1")
PLAIN = tuple(flag for flag in QUICK if flag != "-march=native")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Computes with all threads, unlike the other tests of the runner."""


@pytest.fixture(scope="session")
def library() -> Library:
    return built()


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that holds this library and nothing else."""
    return put_into(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def native(library: Library) -> Backend:
    return partial(NativeAttention, library=library)


@pytest.fixture(scope="session")
def plain_library() -> Library:
    """For any processor of this kind: no wide vectors, no products of pairs."""
    return built(PLAIN)


@pytest.fixture(scope="session")
def avx2_library() -> Library:
    """For processors that have nothing wider."""
    if not {"avx2", "fma"} <= set(processor().split()):
        pytest.skip("needs AVX2")
    return built((*PLAIN, *AVX2))


@pytest.fixture(scope="session")
def vnni_library() -> Library:
    """For processors that add up products of bytes in one instruction, which is emulated."""
    if not {"avx2", "fma", "f16c"} <= set(processor().split()):
        pytest.skip("needs AVX2")
    return built((*PLAIN, *AVX2, "-include", str(Path(__file__).with_name("emulated_vnni.h"))))


@pytest.fixture(scope="session")
def tiles_library(compiler_defines: frozenset[str]) -> Library:
    """For processors with AMX, whose tiles are emulated."""
    if not {"__AVX512BF16__", "__AVX512VNNI__"} <= compiler_defines:
        pytest.skip("needs AVX-512 with bfloat16 and VNNI")
    return built((*QUICK, *BFLOAT16["tiles"]))


@pytest.fixture(scope="session")
def compiler_defines() -> frozenset[str]:
    """The macros of the processor that the compiler compiles for."""
    command, _ = building._compiler()
    return frozenset(compiler.run(*command, *FLAGS, "-dM", "-E", "-x", "c++", os.devnull).split())


@pytest.fixture(scope="session", params=BFLOAT16)
def bfloat16_library(request: pytest.FixtureRequest, compiler_defines: frozenset[str]) -> Library:
    """As it would be where products of pairs are faster, where they are not, and where there are tiles."""
    if "__AVX512BF16__" not in compiler_defines:
        pytest.skip("needs AVX-512 with bfloat16")
    library = built((*QUICK, *BFLOAT16[request.param]))
    assert library.bfloat16_products == request.param
    return library
