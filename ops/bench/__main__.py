"""`make bench`: all figures of this machine, one table after the other. Arguments choose among them.

    python -m ops.bench [brain] [front] [engine]

Each part has options of its own (python -m ops.bench.engine --help). Run it on a machine that does nothing
else.
"""

from __future__ import annotations

import subprocess
import sys

PARTS = {
    "brain": "scheduling alone",
    "front": "everything around the engine",
    "engine": "the engine beside transformers' continuous batching and static generate",
}


def main() -> int:
    chosen = sys.argv[1:] or list(PARTS)
    unknown = [name for name in chosen if name not in PARTS]
    if unknown:
        sys.stderr.write(f"no part called {unknown[0]!r}; there are {', '.join(PARTS)}\n")
        return 2
    for name in chosen:
        print(f"\n## {name}: {PARTS[name]}\n", flush=True)
        status = subprocess.run([sys.executable, "-W", "ignore", "-m", f"ops.bench.{name}"]).returncode
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
