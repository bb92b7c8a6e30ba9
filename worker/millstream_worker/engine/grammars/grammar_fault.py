"""The fault of a grammar in words: the reason out of llguidance's message, and the place in a JSON schema,
which that does not say.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

from millstream_worker.engine.grammars.schemas.refusals import reworded
from millstream_worker.engine.grammars.schemas.subschemas import SHARED, Path, Schema, subschemas

_LONGEST = 500
_OF_PATTERN = re.compile(
    r"regex parse error:\n\s*(?P<pattern>[^\n]*)\n.*?error: (?P<reason>[^\n]*)", re.DOTALL
)


class InvalidGrammar(ValueError):
    """The grammar cannot be used; the message says why. `used_s`: the CPU seconds of another process in which
    that was found."""

    def __init__(self, message: str, used_s: float = 0.0) -> None:
        super().__init__(message)
        self.used_s = used_s


class PlacedFault(InvalidGrammar):
    """The message says where, too."""


class CpuBudget:
    """CPU seconds of this thread and of the checks for which it waits: a busy machine does not shorten it."""

    def __init__(self, cpu_s: float) -> None:
        self._end_s = time.thread_time() + cpu_s

    @property
    def is_over(self) -> bool:
        return time.thread_time() > self._end_s

    def problem(self, check: Callable[[], float]) -> Exception | None:
        """Returns what is wrong by a check, which returns the CPU seconds that it took elsewhere."""
        try:
            self._end_s -= check()
        except (ValueError, RecursionError) as error:
            self._end_s -= error.used_s if isinstance(error, InvalidGrammar) else 0.0
            return error
        return None


def reason_of(error: str) -> str:
    """Returns a message of the compiler as one line, which names the pattern that it means."""
    first = (error.strip() or "it cannot be compiled").splitlines()[0]
    found = _OF_PATTERN.search(error)
    if found is None:
        return reworded(first)[:_LONGEST]
    return f"{first[:200].removesuffix(':')} in {found['pattern']!r:.100}: {found['reason']:.200}"


def path_of(schema: Schema, fails: Callable[[Schema], bool]) -> Path:
    """Returns the path of the smallest part that fails by itself, beside the definitions of the whole."""
    path: Path = ()
    part = schema
    shared = {name: schema[name] for name in SHARED if name in schema}
    while found := next((one for one in _parts(part) if fails(shared | one[1])), None):
        names, part = found
        path += names
    return path


def pointer_of(path: Path) -> str:
    """Returns the path as people read it, shortened where it is long."""
    return "".join(f"/{name!s:.40}" for name in path)[-200:] or "/"


def _parts(schema: Schema) -> Iterator[tuple[Path, Schema]]:
    return ((path, part) for path, part in subschemas(schema) if isinstance(part, dict))
