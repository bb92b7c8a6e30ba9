"""Requests on their way through the thread that compiles grammars."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from millstream_worker.engine.grammars.grammar_fault import InvalidGrammar
from millstream_worker.engine.grammars.grammar_thread import GrammarThread
from millstream_worker.engine.protocol.outputs import EngineStats, Refused
from millstream_worker.engine.protocol.request import EngineRequest, GrammarSpec


class Panic(BaseException):
    """As pyo3's is: no Exception."""


class Compiler:
    """Its answers, and errors, by the text of the grammar."""

    compiled_total, reused_total = 5, 2

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_go_on = threading.Event()
        self.compiled: list[int] = []  # handles

    def matchers(self, request: EngineRequest) -> Mapping[int, Any]:
        assert request.grammar is not None
        self.compiled.append(request.handle)
        match request.grammar.text:
            case "slow":
                self.begun.set()
                assert self.may_go_on.wait(10)
            case "panic":
                raise Panic("index out of bounds")
            case "invalid":
                raise InvalidGrammar("no such key")
        return {}


def request(handle: int, text: str, choices: int = 1, priority: int = 1) -> EngineRequest:
    grammar = GrammarSpec("regex", text)
    return EngineRequest(handle, (1,), 5, choices=choices, priority=priority, grammar=grammar)


def taken(thread: GrammarThread) -> list[Any]:
    everything = []
    until = time.monotonic() + 10
    while len(thread):
        everything += thread.take()
        assert time.monotonic() < until, "a request does not come back"
        time.sleep(0.001)
    return everything


@pytest.mark.parametrize(("text", "problem"), [("panic", "Panic"), ("invalid", "no such key")])
def test_a_grammar_that_fails_leaves_the_thread_running(text: str, problem: str) -> None:
    thread = GrammarThread(Compiler())  # type: ignore[arg-type]
    for handle, each in enumerate((text, "good", text)):
        thread.put(request(handle, each))
    first, good, last = taken(thread)
    assert [one.request.handle for one in (first, good, last)] == [0, 1, 2]
    for refused in (first.matchers, last.matchers):
        assert isinstance(refused, Refused)
        assert problem in refused.message
        assert ("in matchers" in refused.trace) is (text == "panic")
        assert "index out of bounds" not in refused.message
    assert good.matchers == {}


def test_aborted_choices_are_told_once() -> None:
    thread = GrammarThread(Compiler())  # type: ignore[arg-type]
    thread.abort([3])  # of no request here
    thread.put(request(1, "good", choices=3))
    thread.put(request(7, "good"))
    thread.abort([2, 3, 99])
    assert [done.aborted for done in taken(thread)] == [{2, 3}, set()]
    thread.put(request(2, "good"))
    assert [done.aborted for done in taken(thread)] == [set()]


def test_the_wait_is_counted() -> None:
    compiler = Compiler()
    thread = GrammarThread(compiler)  # type: ignore[arg-type]
    stats = EngineStats(rows_running=3)
    assert thread.counted(stats) is stats
    thread.put(request(1, "slow", choices=2))
    thread.put(request(3, "good"))
    waiting = thread.counted(stats)
    assert (waiting.rows_running, waiting.grammars_waiting) == (3, 2)
    compiler.may_go_on.set()
    first, second = taken(thread)
    done = thread.counted(stats)
    assert (done.grammars_waiting, done.grammars_compiled_total, done.grammars_reused_total) == (0, 5, 2)
    assert first.waited_s + second.waited_s >= done.grammar_s_total > 0


def test_interactive_grammars_go_first_and_aborted_ones_never() -> None:
    compiler = Compiler()
    thread = GrammarThread(compiler)  # type: ignore[arg-type]
    thread.put(request(1, "slow"))
    assert compiler.begun.wait(10)
    for each in (request(2, "good"), request(3, "good", choices=2), request(5, "good"), request(6, "good")):
        thread.put(each)
    thread.put(request(7, "good", priority=0))
    thread.abort([3, 4, 5])
    compiler.may_go_on.set()
    assert [(one.request.handle, one.aborted) for one in taken(thread)] == [
        (1, set()), (7, set()), (2, set()), (3, {3, 4}), (5, {5}), (6, set()),
    ]  # fmt: skip
    assert compiler.compiled == [1, 7, 2, 6]


def test_the_tenants_of_a_lane_have_turns() -> None:
    """One with many formats that take seconds keeps another waiting for one of them."""
    compiler = Compiler()
    thread = GrammarThread(compiler)  # type: ignore[arg-type]
    thread.put(request(1, "slow"))
    assert compiler.begun.wait(10)
    for handle, tenant in enumerate("aaaabbc", 2):
        thread.put(replace(request(handle, "good"), tenant=tenant))
    thread.put(replace(request(9, "good", priority=0), tenant="a"))
    compiler.may_go_on.set()
    taken(thread)
    assert compiler.compiled == [1, 9, 2, 6, 8, 3, 7, 4, 5]
    thread.put(replace(request(1, "good"), tenant="a"))  # no turn is owed for those that are done
    thread.put(replace(request(2, "good"), tenant="b"))
    assert [done.request.handle for done in taken(thread)] == [1, 2]


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has no priority of its own")
def test_the_thread_yields_cores_and_the_others_do_not() -> None:
    seen: list[int] = []

    class Looking:
        def matchers(self, request: EngineRequest) -> Mapping[int, Any]:
            seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            return {}

    before = os.getpriority(os.PRIO_PROCESS, 0)
    thread = GrammarThread(Looking())  # type: ignore[arg-type]
    thread.put(request(1, "good"))
    assert len(taken(thread)) == 1
    assert seen == [10]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
