"""Requests on their way through the thread that compiles grammars."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from millstream_worker.engine.brain.grammars.compiling import InvalidGrammar
from millstream_worker.engine.grammar_thread import GrammarThread
from millstream_worker.engine.protocol.outputs import Refused
from millstream_worker.engine.protocol.request import EngineRequest, GrammarSpec


class Panic(BaseException):
    """As pyo3's is: no Exception."""


class Compiler:
    """Its answers, and errors, by the text of the grammar."""

    def matchers(self, request: EngineRequest) -> Mapping[int, Any]:
        assert request.grammar is not None
        match request.grammar.text:
            case "panic":
                raise Panic("index out of bounds")
            case "invalid":
                raise InvalidGrammar("no such key")
        return {}


def request(handle: int, text: str, choices: int = 1) -> EngineRequest:
    return EngineRequest(handle, (1,), 5, choices=choices, grammar=GrammarSpec("regex", text))


def taken(thread: GrammarThread) -> list[Any]:
    everything = []
    until = time.monotonic() + 10
    while len(thread):
        everything += thread.take()
        assert time.monotonic() < until, "a request does not come back"
        time.sleep(0.001)
    return everything


@pytest.mark.parametrize(("text", "problem"), [("panic", "index out of bounds"), ("invalid", "no such key")])
def test_what_cannot_be_compiled_comes_back_and_the_thread_goes_on(text: str, problem: str) -> None:
    thread = GrammarThread(Compiler())  # type: ignore[arg-type]
    for handle, each in enumerate((text, "good", text)):
        thread.put(request(handle, each))
    first, good, last = taken(thread)
    assert [one[0].handle for one in (first, good, last)] == [0, 1, 2]
    for refused in (first[1], last[1]):
        assert isinstance(refused, Refused)
        assert problem in refused.message
    assert good[1] == {}


def test_aborted_choices_are_told_once() -> None:
    thread = GrammarThread(Compiler())  # type: ignore[arg-type]
    thread.abort([3])  # of no request here
    thread.put(request(1, "good", choices=3))
    thread.put(request(7, "good"))
    thread.abort([2, 3, 99])
    assert [aborted for _, _, aborted in taken(thread)] == [{2, 3}, set()]
    thread.put(request(2, "good"))
    assert [aborted for _, _, aborted in taken(thread)] == [set()]
