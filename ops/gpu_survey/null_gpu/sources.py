"""Writes the sources that depend on torch: what the C++ files here lack of the CUDA runtime; the driver,
which passes calls on to the runtime's library; and cuBLAS, whose products are counted."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

_COUNT = """\
extern void null_gpu_count(const char *, void *);
static void *stream;
#include <stdlib.h>
#include <string.h>
"""
_MISSING = """\
extern "C" int {0}() {{
  fprintf(stderr, "NULL GPU: there is no {0}\\n");
  return 801; // cudaErrorNotSupported
}}
"""
_FORWARD = """\
__attribute__((visibility("hidden"))) void *p_{0};
__asm__(".globl {0}\\n.type {0},@function\\n{0}: jmp *p_{0}(%rip)\\n");
"""
_DRIVER_HEAD = "#include <dlfcn.h>\n#include <stdio.h>\n#include <stdlib.h>\n"
_DRIVER_INIT = """\
__attribute__((constructor)) static void init(void) {{
  void *library = dlopen("{0}", RTLD_NOW | RTLD_GLOBAL);
  if (!library) abort();
{1}}}
"""
_EXPORTED = "{0} {{ global: cu*; __cuda*; null_gpu_count; local: *; }};\n"
_MATMUL = """\
int cublasLtMatmul(void *h, void *d, void *a, void *A, void *Ad, void *B, void *Bd, void *b, void *C,
                   void *Cd, void *D, void *Dd, void *l, void *w, size_t n, void *s) {
  null_gpu_count("cublasLtMatmul", s);
  return 0;
}"""
_HEURISTIC = """\
int cublasLtMatmulAlgoGetHeuristic(void *h, void *d, void *a, void *b, void *c, void *e, void *p, int n,
                                   void *r, int *got) {
  *got = 1;
  memset(r, 0, 96);
  return 0;
}"""
_OWN = {  # of cuBLAS, what more than returns 0
    "cublasCreate_v2": "int cublasCreate_v2(void **h) { *h = malloc(8); return 0; }",
    "cublasSetStream_v2": "int cublasSetStream_v2(void *h, void *s) { stream = s; return 0; }",
    "cublasGetMathMode": "int cublasGetMathMode(void *h, int *m) { *m = 0; return 0; }",
    "cublasGetPointerMode_v2": "int cublasGetPointerMode_v2(void *h, int *m) { *m = 0; return 0; }",
    "cublasLtMatmul": _MATMUL,
    "cublasLtMatmulAlgoGetHeuristic": _HEURISTIC,
    "cublasLtGetVersion": "size_t cublasLtGetVersion(void) { return 130100; }",
}


def write_sources(torch: Path, folder: Path, runtime: str, objects: Sequence[Path]) -> None:
    """For the installed package `torch`, into `folder`, where `objects` become the library `runtime`."""
    asked, there = _asked(torch), _defined(objects)
    missing = map(_MISSING.format, sorted(asked[runtime] - there))
    (folder / "missing.cpp").write_text("#include <cstdio>\n" + "".join(missing))
    driver = sorted(name for name in there if re.match("cu[A-Z]", name))
    (folder / "cuda.c").write_text(_driver(driver, folder / runtime))
    for library in ("libcublas", "libcublasLt"):
        text = _COUNT + "\n".join(map(_cublas, sorted(asked[f"{library}.so.13"]))) + "\n"
        (folder / f"{library}.c").write_text(text)
    for library in ("libcudart", "libcublas", "libcublasLt"):
        (folder / f"{library}.map").write_text(_EXPORTED.format(f"{library}.so.13"))


def _asked(torch: Path) -> dict[str, set[str]]:
    """By library, the names that torch's libraries ask of it."""
    found: dict[str, set[str]] = {}
    for library in torch.glob("lib/*.so*"):
        command = ["objdump", "-T", str(library)]
        table = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        for version, name in re.findall(r"\*UND\*\s+\S+\s+\(?(lib\w+\.so\.\d+)\)?\s+(\S+)", table):
            found.setdefault(version, set()).add(name)
    return found


def _defined(objects: Iterable[Path]) -> set[str]:
    """The names of their functions."""
    command = ["nm", "--defined-only", *map(str, objects)]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r" T (\w+)$", table, re.MULTILINE))


def _driver(names: Sequence[str], runtime: Path) -> str:
    found = "".join(f'  p_{name} = dlsym(library, "{name}");\n' for name in names)
    return _DRIVER_HEAD + "".join(map(_FORWARD.format, names)) + _DRIVER_INIT.format(runtime, found)


def _cublas(name: str) -> str:
    if name in _OWN:
        return _OWN[name]
    if name.endswith("Create"):
        return f"int {name}(void **h) {{ *h = malloc(256); return 0; }}"
    if re.search("gem[mv]", name, re.IGNORECASE):
        return f'int {name}(void *h) {{ null_gpu_count("{name}", stream); return 0; }}'
    return f"int {name}(void *h) {{ return 0; }}"
