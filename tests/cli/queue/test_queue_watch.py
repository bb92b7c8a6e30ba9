"""`millstream queue --watch` on a real terminal, and into a file, while its server comes and goes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from support.commands import Terminal, on_terminal, process
from support.servers.servers import Server

from millstream import Client

SIZES = [(80, 24), (100, 30), (200, 50)]
SILENT = "server does not answer, "
HEAD = "queue default · "


@pytest.fixture
def own_server() -> Iterator[Server]:
    """One that a test stops and starts."""
    with Server("valkey") as server:
        with Client(server.url) as client:
            client.submit("hello")
        yield server


def silent(lines: list[str]) -> bool:
    return any(line.startswith(SILENT) for line in lines)


def long_silent(lines: list[str]) -> bool:
    """The first page that tells it may be half drawn."""
    return any(line.startswith(SILENT) and int(line.removeprefix(SILENT).split()[0]) >= 4 for line in lines)


def assert_one_page(lines: list[str], columns: int, height: int) -> None:
    assert lines[0].startswith(HEAD), lines
    assert sum(line.startswith(HEAD) for line in lines) == 1
    assert sum(line.startswith("batch ") for line in lines) == 1
    assert (len(lines) <= height, max(map(len, lines)) <= columns) == (True, True)


@contextlib.contextmanager
def watching(server: Server) -> Iterator[list[Terminal]]:
    """On terminals of all sizes at once."""
    with contextlib.ExitStack() as exits:
        yield [
            exits.enter_context(
                on_terminal(
                    *("queue", "--watch", "--redis-url", server.url),
                    columns=columns,
                    lines=lines,
                    answers=True,
                )
            )
            for columns, lines in SIZES
        ]


@pytest.mark.slow
def test_an_outage_is_told_inside_the_page(own_server: Server) -> None:
    """Twice: by a server that is silent, and by one that is gone."""
    with watching(own_server) as terminals:
        for terminal in terminals:
            terminal.until(lambda lines: any(line.startswith("batch ") for line in lines))
        for outage in ("silent", "gone"):
            assert own_server.process is not None
            if outage == "silent":
                os.kill(own_server.process.pid, signal.SIGSTOP)
            else:
                own_server.kill()
            for terminal, size in zip(terminals, SIZES, strict=True):
                lines = terminal.until(long_silent)
                assert lines[1].startswith(SILENT)
                assert_one_page(lines, *size)
            if outage == "silent":
                os.kill(own_server.process.pid, signal.SIGCONT)
            else:
                own_server.start()
                with Client(own_server.url) as client:
                    client.submit("hello")
            for terminal, size in zip(terminals, SIZES, strict=True):
                assert_one_page(terminal.until(lambda lines: not silent(lines)), *size)
        for terminal, size in zip(terminals, SIZES, strict=True):
            terminal.press_ctrl_c()
            lines = terminal.until(lambda lines: lines[-2:-1] == ["millstream: stopped"])
            assert terminal.running.wait(30) == 130
            assert_one_page(lines, *size)  # it stays


def test_another_size_leaves_nothing_of_the_page_before(own_server: Server) -> None:
    with on_terminal(
        "queue", "--watch", "--redis-url", own_server.url, columns=100, lines=30, answers=True
    ) as terminal:
        terminal.until(lambda lines: any(line.startswith("workers ") for line in lines))
        terminal.resize(60, 9)
        for _ in range(2):  # the first time, a page of before may have been under way
            terminal.shown = b""
            lines = terminal.until(lambda lines: any(line.startswith("batch 1 waiting") for line in lines))
        assert len(lines) <= 9
        assert not any(line.startswith("requests held") for line in lines)


@pytest.mark.slow
def test_a_file_gets_two_lines_of_an_outage(own_server: Server) -> None:
    with process("queue", "--watch", "--json", "--redis-url", own_server.url) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith('{"queue":"default"')
        own_server.kill()
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(6.5)  # some questions without an answer
        own_server.start()
        while not running.stdout.readline().startswith('{"queue":"default",'):
            continue
        running.stdout.readline()
        running.send_signal(signal.SIGINT)
        assert running.stderr is not None
        told = running.stderr.read().splitlines()
    assert [line.partition(": ")[2].partition(" ")[0] for line in told] == ["warning:", "the", "stopped"], (
        told
    )
    assert "the server answers again after " in told[1]
