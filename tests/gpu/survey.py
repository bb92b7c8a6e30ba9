"""What an unknown GPU makes of the engine, in about ten minutes: the first thing to run on one.

    PYTHONPATH=worker:producer:tests:. python tests/gpu/survey.py [--out FOLDER] [--parts attention,kernels]

Each part is a process with a time limit of its own (--list shows them): one that crashes, hangs or meets an
illegal access costs nothing but itself. In FOLDER, by default $OUT or out/survey, come back

    PART.jsonl              what the part has found, a line each, there as soon as it is found
    PART.log                what it printed; tracebacks, and where it hung
    PART-STEP.trace.json.gz profiles
    summary.json            all findings and how each part ended, written anew after each part

It needs what the engine imports (torch, transformers, accelerate with psutil, gguf, msgpack), numpy and
triton, no server, no checkpoint, no network; pytest for some checks if it is there. With --device cpu each
part runs in tiny form or says that it needs CUDA: to try the survey itself, in some minutes. Ends with
status 1 where a part failed. A GPU on which none does belongs into _TESTED of engine/runner/device/gpu.py:
what it computes is not checked in service any more.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path

from gpu.parts import PARTS
from gpu.parts.running import survey


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--parts", default="", help="only these, separated by commas")
    parser.add_argument("--list", action="store_true", help="the parts and their limits")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out/survey")))
    parser.add_argument("--seconds", type=float, default=580.0, help="for all parts together")
    options = parser.parse_args()
    if options.list:
        print(*(f"{part.name:10} {part.limit_s:4.0f} s  {part.what}" for part in PARTS), sep="\n")
        return 0
    names = [name for name in options.parts.split(",") if name] or [part.name for part in PARTS]
    if unknown := set(names) - {part.name for part in PARTS}:
        parser.error(f"no part {', '.join(sorted(unknown))}; --list shows them")
    chosen = [part for part in PARTS if part.name in names]
    tell = partial(print, flush=True)
    return 0 if survey(chosen, options.device, options.out, options.seconds, tell) else 1


if __name__ == "__main__":
    sys.exit(main())
