"""Ctrl-C while asynchronous work runs."""

from __future__ import annotations

import asyncio
import signal

import pytest

from millstream.cli.shared.interrupts import run_async


class Work:
    """Is interrupted while it waits, and again while it ends."""

    def __init__(self) -> None:
        self.ended = False

    async def run(self) -> None:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(0)
            self.ended = True


def test_a_second_signal_does_not_interrupt_the_cleanup() -> None:
    work = Work()
    with pytest.raises(KeyboardInterrupt):
        run_async(work.run())
    assert work.ended
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_later_signal_breaks_it_off() -> None:
    work = Work()
    with pytest.raises(KeyboardInterrupt):
        run_async(work.run(), at_once_s=0.0)
    assert not work.ended
