"""`python -m millstream_worker.images.nursery --fd N`: loads a checkpoint's image processor, without torch,
and forks the children that prepare images, one for each: it is ready at once and shares the nursery's memory.

    front to nursery: NurseryConfig (first), then FORK with the child's end of a socket pair, or KILL with a
    process id; nursery to front: ProcessorFacts, or the reason why the images are not read.

Only children that were not reaped are killed, so that no other process gets the signal. When the front is
gone, the nursery and its children end: they are one process group.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import signal
import socket
import struct
import sys
from typing import TYPE_CHECKING

from millstream_worker.images.messages import NurseryConfig, ProcessorFacts, packed, received, unpacked

if TYPE_CHECKING:
    from millstream_worker.images.processor import ImageProcessor

COMMAND = struct.Struct(">cI")  # a letter, and a process id
FORK, KILL = b"F", b"K"


def main(front: socket.socket) -> None:
    config = NurseryConfig(*unpacked(received(front)))
    sys.modules["torch"] = None  # type: ignore[assignment]  # 190 MiB of each child, and seconds of its start
    try:
        processor = _load(config)
    except Exception as error:  # noqa: BLE001 - it is said to the front, which refuses images
        front.sendall(packed(("failed", f"{error}")))
        return
    front.sendall(packed(("ready", ProcessorFacts(processor.placeholder, processor.placeholder_id))))
    gc.collect()
    gc.freeze()  # its pages stay shared
    _fork_on(front, processor, config)


def _load(config: NurseryConfig) -> ImageProcessor:
    """With everything that a child needs imported: it may open few files."""
    from PIL import Image

    from millstream_worker.images import child  # noqa: F401 - for the children
    from millstream_worker.images.processor import ImageProcessor

    Image.init()
    processor = ImageProcessor.load(config.folder, config.options)
    processor.prepare(Image.new("RGB", (64, 48)))
    return processor


def _fork_on(front: socket.socket, processor: ImageProcessor, config: NurseryConfig) -> None:
    children: set[int] = set()
    while True:
        command, given, _, _ = socket.recv_fds(front, COMMAND.size, 1)
        if len(command) < COMMAND.size:
            return
        kind, pid = COMMAND.unpack(command)
        children -= {one for one in children if os.waitpid(one, os.WNOHANG)[0]}
        if kind == FORK:
            [descriptor] = given
            with contextlib.suppress(OSError):  # the front then sees that this child has ended
                if (made := os.fork()) == 0:
                    _be_child(front, socket.socket(fileno=descriptor), processor, config)
                children.add(made)
            os.close(descriptor)
        elif pid in children:
            children.discard(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _be_child(
    front: socket.socket, peer: socket.socket, processor: ImageProcessor, config: NurseryConfig
) -> None:
    from millstream_worker.images.child import serve

    status = 1
    try:
        front.close()
        serve(peer, processor, config)
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="millstream_worker.images.nursery")
    parser.add_argument("--fd", type=int, required=True, help="inherited descriptor of the socket pair")
    try:
        main(socket.socket(fileno=parser.parse_args().fd))
    finally:
        os.killpg(0, signal.SIGKILL)  # with its children
