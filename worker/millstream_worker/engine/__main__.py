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
    """The exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the front's to handle: it drains
    return serve(Channel(peer), load)


def front() -> socket.socket:
    """The socket to it, from the command line."""
    parser = argparse.ArgumentParser(prog="millstream_worker.engine")
    parser.add_argument("--fd", type=int, required=True, help="inherited descriptor of the socket pair")
    return socket.socket(fileno=parser.parse_args().fd)


def load(config: EngineConfig, report: Report, mark: Mark) -> tuple[Engine[Any], EngineInfo]:
    """Build the engine. Importing torch takes 2 to 20 seconds: whether the model is there is known before.

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
    """End without taking the interpreter apart, which with torch in it takes more than a second of a core.

    Registered before torch is imported, this runs after all that libraries do at the end of the process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_status)


if __name__ == "__main__":
    peer = front()
    exit_status = 1  # of an error that nobody caught
    atexit.register(leave)
    exit_status = main(peer)
