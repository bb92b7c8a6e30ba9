"""The results of the checks at an engine's start, and its fallbacks; for the log and the front."""

from __future__ import annotations

from collections.abc import Callable

from millstream_worker.engine.runner.self_check.deviation import Mismatch

_MOST = 300  # characters of a reason


class Findings:
    """`checks`: what passed, or could not be checked. `fallbacks`: what runs slower than it could, with the
    reasons."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self.report = report
        self.checks: list[str] = []
        self.fallbacks: list[str] = []

    def passed(self, what: str, worst: float) -> None:
        """Record a passed check. `worst`: the largest deviation, as a share of the largest value."""
        self.checks.append(f"{what} off by at most {worst:.1g}")
        self.report(f"{what} checked: off by at most {worst:.1g} of the largest value")

    def unchecked(self, what: str, reason: str) -> None:
        """Record that something could not be checked; it is used nevertheless."""
        self.checks.append(f"{what} not checked: {reason}")
        self.report(self.checks[-1])

    def fall_back(self, line: str) -> None:
        self.fallbacks.append(line)
        self.report(line)


def short(error: Exception) -> str:
    """One line about an error of code that is not ours."""
    text = " ".join(str(error).split())[:_MOST]
    kind = type(error).__name__
    return text if isinstance(error, Mismatch) else f"{kind}: {text}" if text else kind
