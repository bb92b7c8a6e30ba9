"""Receives frames without waiting, and sends them without blocking the batch: the engine process' end of the
socket pair.
"""

from __future__ import annotations

import queue
import select
import socket
import threading
from collections.abc import Iterator

from millstream_worker.engine.protocol.frames import Frame, FrameBuffer, encode

_RECEIVE_BYTES = 1 << 20
_OUTBOX_FRAMES = 4096  # beyond that the front has stopped reading: the batch then waits for it


class PeerGone(Exception):
    """The front closed its end, or died: nobody waits for results."""


class Channel:
    """Owns the socket and one writer thread. `receive` and `send` are called by the batch loop alone; `send`
    also by the beat."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._arrivals = select.poll()  # unlike select(), it takes descriptors of any number
        self._arrivals.register(peer, select.POLLIN)
        self._inbox = FrameBuffer()
        self._outbox: queue.Queue[bytes | None] = queue.Queue(_OUTBOX_FRAMES)
        self._writer = threading.Thread(target=self._write, name="frames-out", daemon=True)
        self._writer.start()

    def receive(self, wait_s: float | None) -> Iterator[Frame]:
        """Yields frames that have arrived; waits up to `wait_s` (None: for ever) for one. Raises PeerGone."""
        for frame in self._inbox.feed(b""):  # read by an earlier call and not consumed
            wait_s = 0.0
            yield frame
        while self._arrivals.poll(None if wait_s is None else 1000 * wait_s):
            try:
                data = self._peer.recv(_RECEIVE_BYTES)
            except ConnectionResetError:
                data = b""  # it went away with frames of ours unread
            if not data:
                raise PeerGone
            for frame in self._inbox.feed(data):
                wait_s = 0.0
                yield frame

    @property
    def gone(self) -> bool:
        """True if the front has hung up, as far as visible without reading."""
        hung_up = select.poll()
        try:
            hung_up.register(self._peer, 0)
            return any(event & (select.POLLHUP | select.POLLERR) for _, event in hung_up.poll(0))
        except (OSError, ValueError):  # closed here meanwhile
            return False

    def send(self, frame: Frame) -> None:
        self._outbox.put(encode(frame))

    def close(self) -> None:
        """Sends all waiting frames, then ends."""
        self._outbox.put(None)
        self._writer.join(timeout=5)
        self._peer.close()

    def _write(self) -> None:
        """Sends until told to end. Once the front is gone frames are still taken, and dropped: a full outbox
        would block the batch loop for ever, and only receive() reports the end.
        """
        gone = False
        while (data := self._outbox.get()) is not None:
            if gone:
                continue
            try:
                self._peer.sendall(data)
            except OSError:
                gone = True
