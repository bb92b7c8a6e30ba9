"""The null GPU: the CUDA path without a GPU.

    python -m ops.gpu_survey.null_gpu                    builds it, if it is not there
    python -m ops.gpu_survey.null_gpu python COMMAND …   runs a command on it, with its own Python

Libraries stand in for CUDA's runtime, driver and cuBLAS, so that the very torch of a GPU's machine runs as if
it had an H100 with 80 GiB. Real are all Python and C++ on the host; torch's allocator, streams, captures and
pools of graphs, pinned memory; dynamo and inductor; Triton's compiler and ptxas for sm_90a, its launcher and
its check that pointers are the device's. But nothing computes: the device's memory is always zero (copies to
it are dropped), products and kernels are counted, events tell the host's time. So it finds wrong arguments,
missing names, operations that no capture permits (it knows the usual ones, prints NULL GPU: and breaks the
capture), tensors of the wrong device, waits and leaks, and shows what the host costs: the step times are the
host's share alone. It finds no wrong number, race, illegal access, and tells nothing of a device's speed.
Expected to fail on it and nowhere else: the comparison of tokens with the CPU's, profiles, memcheck, cuDNN.

NULL_GPU_NAME and NULL_GPU_GIB name another card. NULL_GPU_GRAPHS=FILE: the kernels of each recorded graph.
NULL_GPU_REPORT=FILE: launches, replays, captures and violations at exit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from ops.gpu_survey.carried import ROOT, SOURCES
from ops.gpu_survey.null_gpu.build import FOLDER, HERE, LIBRARIES, build, built

ACTIVE = "NULL_GPU"  # set in its processes
H200 = {"NULL_GPU_NAME": "NVIDIA H200", "NULL_GPU_GIB": "139"}


def active() -> bool:
    """Whether this process has it."""
    return ACTIVE in os.environ


def run_on_null_gpu(command: Sequence[str], card: Mapping[str, str] | None = None) -> int:
    """Build it, if it is not there, and run a command on it; "python" is its own. Returns the exit status."""
    if not built():
        build()
    paths = (HERE / "startup", *(ROOT / name for name in (*SOURCES, ".")))
    own = {
        ACTIVE: "1",
        "LD_PRELOAD": os.pathsep.join(str(FOLDER / name) for name in LIBRARIES),
        "LD_LIBRARY_PATH": str(FOLDER),
        "PATH": f"{FOLDER / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "OMP_NUM_THREADS": "1",
    }
    environment = {**os.environ, **own, **(card or {})}
    program = str(FOLDER / "venv" / "bin" / "python") if command[0] == "python" else command[0]
    return subprocess.run([program, *command[1:]], env=environment, check=False).returncode


def main(command: Sequence[str]) -> int:
    name = "import torch; print(torch.cuda.get_device_name(), 'torch', torch.__version__)"
    return run_on_null_gpu(command or ["python", "-c", name])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
