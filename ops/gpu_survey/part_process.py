"""The process of one part: python -m ops.gpu_survey.part_process ENTRY NAME DEVICE FOLDER LIMIT_S"""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path

from ops.gpu_survey.survey import DONE, FAILED, NEEDS_CUDA, NeedsCUDA, Survey

from millstream_worker.engine_link.link import engine_environment

_FAILED = 1


def main(entry: str, name: str, device: str, out: str, limit_s: str) -> int:
    limit = float(limit_s)
    faulthandler.dump_traceback_later(max(limit / 2, limit - 5))  # where it hangs, before it is killed
    os.environ.update(engine_environment(os.environ, 0))  # of an engine's process; before torch is imported
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # read when it is imported
    module, _, function = entry.partition(":")
    survey = Survey(name, device, Path(out))
    try:
        getattr(import_module(module), function)(survey)
    except NeedsCUDA:
        return NEEDS_CUDA
    except Exception as error:  # noqa: BLE001 - whatever it is, it is found
        traceback.print_exc()
        survey.found("the part ended", f"{FAILED}: {type(error).__name__}: {str(error)[:400]}")
        return _FAILED
    return _FAILED if survey.failed else DONE


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
