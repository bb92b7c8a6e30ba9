"""`python guarded.py FOLDER COMMAND…`: the command in that folder, for as long as standard input is open.

The pipe ends with the engine at its other end, however that ends: then all processes of the command
are killed, and the folder is removed. What the command itself leaves running is killed, too. All are in this
process' session, by which their CPU time is found. Runs without this package.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading


def main(folder: str, command: list[str]) -> int:
    """The command's exit status; 1 where it was killed or cannot be run."""
    environment = os.environ | ({"TMPDIR": folder} if folder else {})
    try:
        process = subprocess.Popen(
            command, cwd=folder or None, stdin=subprocess.DEVNULL, env=environment, process_group=0
        )
    except OSError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1

    first = threading.Lock()  # of the two ends; it is never released

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1):
                continue
        first.acquire()
        _kill_group(process.pid)
        process.wait()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    if hasattr(os, "waitid"):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # nobody else gets its id before `wait`
    else:  # macOS before Python 3.13
        process.wait()
    first.acquire()
    _kill_group(process.pid)
    status = process.wait()
    return 1 if status < 0 else status


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: it is empty but for a zombie
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    status = main(sys.argv[1], sys.argv[2:])
    sys.stderr.flush()
    os._exit(status)  # the thread still reads
