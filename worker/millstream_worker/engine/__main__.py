"""`python -m millstream_worker.engine --fd N`: an engine for the front that holds the other end of socket
N.
"""

from __future__ import annotations

import argparse
import atexit
import os
import signal
import socket
import sys
from typing import Any

from millstream_worker.engine.engine import Engine
from millstream_worker.engine.process import CannotLoad, Report, serve
from millstream_worker.engine.progress import Mark
from millstream_worker.engine.protocol.channel import Channel
from millstream_worker.engine.protocol.config import EngineConfig, EngineInfo


def main(peer: socket.socket) -> int:
    """Returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the front handles Ctrl-C: it drains
    return serve(Channel(peer), load)


def front() -> socket.socket:
    """The socket to the front, from the command line."""
    parser = argparse.ArgumentParser(prog="millstream_worker.engine")
    parser.add_argument("--fd", type=int, required=True, help="inherited descriptor of the socket pair")
    return socket.socket(fileno=parser.parse_args().fd)


def load(config: EngineConfig, report: Report, mark: Mark) -> tuple[Engine[Any], EngineInfo]:
    """Build the engine. The model is checked first: importing torch takes 2 to 20 seconds.

    Raises CannotLoad.
    """
    from millstream_worker.engine.runner.checkpoint.checkpoint import CheckpointError, resolve

    try:
        checkpoint = resolve(config.model, config.cache_dir, report)
    except CheckpointError as error:  # names the model itself
        raise CannotLoad(str(error)) from error
    except (ValueError, OSError) as error:
        raise CannotLoad(f"model {config.model!r}: {error}") from error
    from millstream_worker.engine.assembly import build

    return build(config, report, mark, checkpoint)


def leave() -> None:
    """Skip the interpreter's finalization, which with torch takes more than a second of a core.

    Registered before torch is imported, so it runs after the exit handlers of all libraries.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_status)


if __name__ == "__main__":
    peer = front()
    exit_status = 1  # of an uncaught error
    atexit.register(leave)
    exit_status = main(peer)
