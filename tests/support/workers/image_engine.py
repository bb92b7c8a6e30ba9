"""An engine process that counts (`fake_engine`) and reads images: the last token of a prompt with images is
replaced by the sum of theirs (`shown`), so that an image that is lost, swapped or stale is visible in the
answer. It ends if a prompt names an image that it does not hold, or it is given one twice.

    PYTHONPATH=tests python -m support.workers.image_engine --fd N
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from millstream_worker.engine.process import Tell, serve
from millstream_worker.engine.protocol.channel import Channel
from millstream_worker.engine.protocol.config import EngineConfig, EngineInfo
from millstream_worker.engine.protocol.frames import Add, DropImage, Frame, HoldImage
from millstream_worker.images.messages import PackedArray
from support.workers.fake_engine import CountingEngine
from support.workers.fake_engine import build as build_counting

_FOUND = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
COMMAND = f"env PYTHONPATH={_FOUND} {sys.executable} -m {__name__}"
MEMORY = "MILLSTREAM_TEST_IMAGE_MEMORY"  # bytes of the engine's images
LOG = "MILLSTREAM_TEST_IMAGE_LOG"  # file that gets a line for each frame about images
_SHOWN = 700  # tokens: answers begin below, and end before the vocabulary does


def shown(arrays: tuple[PackedArray, ...]) -> int:
    """Returns an image as a token."""
    return zlib.crc32(b"".join(array.data for array in arrays)) % _SHOWN


class ImageChannel(Channel):
    """Takes the frames about images out, and checks those that name some."""

    def __init__(self, peer: socket.socket) -> None:
        super().__init__(peer)
        self._images: dict[tuple[str, bytes], tuple[int, int]] = {}  # features, and the image as a token

    def receive(self, wait_s: float | None) -> Iterator[Frame]:
        for frame in super().receive(wait_s):
            match frame:
                case HoldImage(salt, digest, features, arrays):
                    assert (salt, digest) not in self._images, "it has this image"
                    self._images[salt, digest] = features, shown(arrays)
                    self._log(f"hold {salt} {digest.hex()[:8]}")
                case DropImage(salt, digest):
                    del self._images[salt, digest]
                    self._log(f"drop {salt} {digest.hex()[:8]}")
                case Add(request) if request.images:
                    yield Add(replace(request, prompt=(*request.prompt[:-1], self._seen(frame))))
                case _:
                    yield frame

    def _seen(self, frame: Add) -> int:
        total = 0
        for span in frame.request.images:
            features, token = self._images[frame.request.salt, span.digest]
            assert sum(count for _, count in span.runs) == features, "other places than features"
            total += token
        return total % _SHOWN

    def _log(self, line: str) -> None:
        if path := os.environ.get(LOG):
            with Path(path).open("a") as log:
                log.write(f"{line}\n")


def build(
    config: EngineConfig, report: Callable[[str], None], mark: Callable[[], None], tell: Tell
) -> tuple[CountingEngine, EngineInfo]:
    engine, info = build_counting(config, report, mark, tell)
    memory = int(os.environ.get(MEMORY, str(2**26)))
    return engine, replace(
        info, images=config.images != "off", image_memory=memory, feature_bytes=64, context_length=512
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(serve(ImageChannel(socket.socket(fileno=parser.parse_args().fd)), build))
