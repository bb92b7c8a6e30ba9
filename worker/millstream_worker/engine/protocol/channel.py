"""Receives frames without waiting, and sends them without blocking the batch: the engine process' end of the
socket pair.
"""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import threading
from collections.abc import Iterator

from millstream_worker.engine.protocol.frames import Frame, FrameBuffer, encode

_RECEIVE_BYTES = 1 << 18
_INBOX_PIECES = 256  # of at most so many bytes; beyond that the front waits
_OUTBOX_FRAMES = 4096  # beyond that the front has stopped reading: the batch then waits for it


class PeerGone(Exception):
    """The front closed its end, or died: nobody waits for results."""


class Channel:
    """Owns the socket, and a thread for each way. `receive` and `send` are called by the batch loop alone;
    `send` also by the beat.

    What comes is read while a step is computed: a socket holds 208 KiB, and the pixels of a page, with all
    that stands behind them, would take a step for each of these.
    """

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._arrived: queue.Queue[bytes] = queue.Queue(_INBOX_PIECES)  # ends with an empty piece
        self._inbox = FrameBuffer()
        self._outbox: queue.Queue[bytes | None] = queue.Queue(_OUTBOX_FRAMES)
        self._writer = threading.Thread(target=self._write, name="frames-out", daemon=True)
        self._reader = threading.Thread(target=self._read, name="frames-in", daemon=True)
        self._writer.start()
        self._reader.start()

    def receive(self, wait_s: float | None) -> Iterator[Frame]:
        """Yields frames that have arrived; waits up to `wait_s` (None: for ever) for one. Raises PeerGone."""
        for frame in self._inbox.feed(b""):  # read by an earlier call and not consumed
            wait_s = 0.0
            yield frame
        while (data := self._next(wait_s)) is not None:
            for frame in self._inbox.feed(data):
                wait_s = 0.0
                yield frame

    def _next(self, wait_s: float | None) -> bytes | None:
        try:
            data = self._arrived.get(wait_s != 0, wait_s)
        except queue.Empty:
            return None
        if not data:
            self._arrived.put(data)  # for the next call
            raise PeerGone
        return data

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
        with contextlib.suppress(OSError):  # the front is gone
            self._peer.shutdown(socket.SHUT_RD)  # the reader ends, unless nobody takes what it has read
        self._reader.join(timeout=1)
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

    def _read(self) -> None:
        data = b"more"
        while data:
            try:
                data = self._peer.recv(_RECEIVE_BYTES)
            except OSError:
                data = b""  # it went away with frames of ours unread
            self._arrived.put(data)
