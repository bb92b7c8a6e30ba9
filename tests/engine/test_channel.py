"""The engine's end of the socket pair, where the front at the other end fails it."""

from __future__ import annotations

import fcntl
import resource
import socket
import threading
from collections.abc import Iterator

import pytest

from millstream_worker.engine.protocol import channel
from millstream_worker.engine.protocol.channel import Channel, PeerGone
from millstream_worker.engine.protocol.frames import Abort, HoldImage, LoadProgress, encode
from millstream_worker.images.messages import PackedArray


def test_a_front_that_dies_without_reading_holds_nobody_up() -> None:
    """Outbox and socket are full, so the batch loop waits in `send`; it must come to hear of the death."""
    ours, theirs = socket.socketpair()
    end, many = Channel(theirs), channel._OUTBOX_FRAMES + 1000
    sent: list[int] = []

    def loop() -> None:
        for number in range(many):
            end.send(LoadProgress("x" * 1000))
            sent.append(number)
        with pytest.raises(PeerGone):
            list(end.receive(None))
        end.close()
        sent.append(many)

    batch = threading.Thread(target=loop, daemon=True)
    batch.start()
    batch.join(timeout=0.3)
    assert len(sent) < many, "it does not wait for the front"
    ours.close()
    batch.join(timeout=20)
    assert sent[-1] == many


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip("this system has no descriptor above 1024")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_descriptor_of_any_number_will_do(many_files: None) -> None:
    """The engine inherits the number that the front had; one of many connections may have a high one."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        end = Channel(socket.socket(fileno=fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD, 1500)))
        assert list(end.receive(0.0)) == []
        ours.sendall(encode(Abort((1,))))
        assert list(end.receive(None)) == [Abort((1,))]
        end.close()


def test_pixels_are_read_while_a_step_is_computed() -> None:
    """More than a socket holds, with an abort behind it: the next step has both, however long this one is."""
    ours, theirs = socket.socketpair()
    pixels = PackedArray("pixel_values", "uint8", (2**24,), bytes(2**24))
    image = HoldImage("salt", b"digest", 1, (pixels,))
    with ours:
        end = Channel(theirs)
        front = threading.Thread(
            target=ours.sendall, args=(encode(image) + encode(Abort((1,))),), daemon=True
        )
        front.start()
        front.join(timeout=20)
        assert not front.is_alive(), "it waits for a call"
        assert list(end.receive(None)) == [image, Abort((1,))]
    for _ in range(2):
        with pytest.raises(PeerGone):
            list(end.receive(None))
    end.close()


def test_what_nobody_takes_is_bounded() -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(1.0)
    with ours:
        end = Channel(theirs)
        most = 2 * channel._INBOX_PIECES * channel._RECEIVE_BYTES
        with pytest.raises(TimeoutError):
            ours.sendall(bytes(most))
        end.close()
