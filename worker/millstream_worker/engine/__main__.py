"""`python -m millstream_worker.engine --fd N`: an engine for the front that holds the other end of socket
N.
"""

from __future__ import annotations

import argparse
import signal
import socket
import sys

from millstream_worker.engine.channel import Channel
from millstream_worker.engine.process import serve


def main() -> int:
    parser = argparse.ArgumentParser(prog="millstream_worker.engine")
    parser.add_argument("--fd", type=int, required=True, help="inherited descriptor of the socket pair")
    peer = socket.socket(fileno=parser.parse_args().fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the front's to handle: it drains
    from millstream_worker.engine.assembly import build  # torch is loaded here, not before the socket is ours

    return serve(Channel(peer), build)


if __name__ == "__main__":
    sys.exit(main())
