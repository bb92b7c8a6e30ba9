"""`python -m millstream_worker.engine --fd N`: an engine for the front at the other end of socket N."""

from __future__ import annotations

import argparse
import atexit
import os
import signal
import socket
import sys
from dataclasses import replace
from typing import Any

from millstream_worker.engine.engine import Engine
from millstream_worker.engine.process import CannotLoad, Report, Tell, serve
from millstream_worker.engine.progress import Mark
from millstream_worker.engine.protocol.channel import Channel
from millstream_worker.engine.protocol.config import EngineConfig, EngineInfo
from millstream_worker.engine.protocol.frames import Found


def main(peer: socket.socket) -> int:
    """Returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the front handles Ctrl-C: it drains
    return serve(Channel(peer), load)


def front() -> socket.socket:
    """The socket to the front, from the command line."""
    parser = argparse.ArgumentParser(prog="millstream_worker.engine")
    parser.add_argument("--fd", type=int, required=True, help="inherited descriptor of the socket pair")
    return socket.socket(fileno=parser.parse_args().fd)


def load(config: EngineConfig, report: Report, mark: Mark, tell: Tell) -> tuple[Engine[Any], EngineInfo]:
    """Build the engine. The model is checked first, and told: importing torch takes 2 to 20 seconds.

    Raises CannotLoad.
    """
    from millstream_worker.engine.runner.checkpoint.checkpoint import CheckpointError, resolve
    from millstream_worker.engine.runner.checkpoint.model_digest import digest_of

    try:
        checkpoint = resolve(config.model, config.cache_dir, report)
        digest = digest_of(checkpoint)
    except CheckpointError as error:  # names the model itself
        raise CannotLoad(str(error)) from error
    except (ValueError, OSError) as error:
        raise CannotLoad(f"model {config.model!r}: {error}") from error
    tell(Found(checkpoint.name, digest))
    from millstream_worker.engine.assembly import build

    engine, info = build(config, report, mark, checkpoint)
    return engine, replace(info, digest=digest)


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
