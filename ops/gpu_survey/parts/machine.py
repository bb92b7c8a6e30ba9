"""What the machine has: versions, compilers and headers, memory; whether Triton compiles at all."""

from __future__ import annotations

import os
import platform
import shutil
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from ops.gpu_survey.survey import Survey

_PACKAGES = ("torch", "transformers", "triton", "accelerate", "numpy", "safetensors", "pytest")


def look(survey: Survey) -> None:
    survey.found("versions", ", ".join([f"Python {platform.python_version()}", *map(_version, _PACKAGES)]))
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    tools = [f"{name} {shutil.which(name) or 'missing'}" for name in ("cc", "gcc", "g++", "ptxas")]
    survey.found("compilers", ", ".join([*tools, f"{header} {'there' if header.is_file() else 'missing'}"]))
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    survey.found("host", f"{os.cpu_count()} cores, {host:.0f} GiB, {platform.machine()}")
    survey.attempt("device", lambda: _device(survey))
    survey.attempt("a Triton kernel of one line", lambda: _triton(survey))


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"


def _device(survey: Survey) -> str:
    survey.need_cuda()
    its, (free, total) = torch.cuda.get_device_properties(0), torch.cuda.mem_get_info()
    memory = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    what = f"{its.name}, sm_{its.major}{its.minor}, {its.multi_processor_count} processors"
    return f"{what}, {memory}, CUDA {torch.version.cuda}, bfloat16 {torch.cuda.is_bf16_supported()}"


def _triton(survey: Survey) -> str:
    from ops.gpu_survey.parts.one_line import double_kernel  # needs triton

    numbers = torch.arange(16.0, device=survey.device)
    doubled = torch.empty_like(numbers)
    double_kernel[1,](numbers, doubled, SIZE=16)
    assert torch.equal(doubled, numbers * 2), f"it computes {doubled.tolist()}"
    return "interpreted" if survey.tiny else "compiled, and right"
