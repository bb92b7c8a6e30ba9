"""Holds back the ends of answers until their calls are checked, where a grammar kept arguments in part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from millstream_worker.engine.grammars.grammar_thread import GrammarThread
from millstream_worker.engine.grammars.matcher import Matcher
from millstream_worker.engine.protocol.request import EngineRequest

End = tuple[int, str]  # a handle, and the reason
_WHOLE = ("stop", "complete")  # reasons of answers that have come to their end


class AnswerChecks:
    def __init__(self, thread: GrammarThread) -> None:
        self._thread = thread
        self._partial: dict[int, tuple[EngineRequest, Matcher]] = {}  # by handle, of rows that run
        self._held: dict[int, str] = {}  # reasons, by handle

    def __bool__(self) -> bool:
        """True while an end is held back."""
        return bool(self._held)

    def watch(self, request: EngineRequest, matchers: Mapping[int, Matcher]) -> None:
        """`matchers`: by choice."""
        for choice, matcher in matchers.items():
            if matcher.partial:
                self._partial[request.handle + choice] = request, matcher

    def abort(self, handles: Iterable[int]) -> None:
        for handle in handles:
            self._partial.pop(handle, None)
            self._held.pop(handle, None)

    def released(self, finished: Sequence[End]) -> tuple[list[End], list[tuple[int, str]]]:
        """Returns those of the ends that need no check, with earlier ones that are checked now; and, by
        handle, why an answer does not fit.
        """
        ends = []
        for handle, reason in finished:
            watched = self._partial.pop(handle, None)
            if watched is None or reason not in _WHOLE:
                ends.append((handle, reason))
            else:
                self._held[handle] = reason
                self._thread.put_answer(handle, *watched)
        misfits = []
        for handle, problem in self._thread.take_answers() if self._held else ():
            if handle in self._held:
                ends.append((handle, self._held.pop(handle)))
                misfits += [(handle, problem)] if problem else []
        return ends, misfits
