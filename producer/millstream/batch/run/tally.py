"""The counts of a run under way, and its summary at the end.

TTFT is first token minus submission, TPOT the time between the tokens of one job; rates are of the rows that
were computed while the run ran, over its wall time.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from millstream.batch.files.spent import NOTHING_SPENT, Spent
from millstream.batch.run.error_counts import Cause, Causes
from millstream.batch.run.pace import NO_WORK, Pace, Work
from millstream.wire.messages.job_messages import Result


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: array[float]) -> Percentiles | None:
        """By the nearest-rank method; None without values."""
        if not values:
            return None
        ordered = sorted(values)
        ranks = (ordered[max(0, -(-len(ordered) * share // 100) - 1)] for share in (50, 95, 99))
        return cls(*ranks)


@dataclass(frozen=True, slots=True)
class Summary:
    """`completed` and `failed` count this run; `skipped` lines have their row from earlier ones, which is an
    error row for `skipped_failed` of them. Tokens are those that were computed: `reused` lines have none.
    `seconds` and `work` are of this run, `spent` of all runs of this output, this one too. `groups` and
    `shared_tokens` are properties of IN: they count lines that are reused or were answered earlier, too.
    """

    completed: int
    failed: int
    skipped: int
    skipped_failed: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    seconds: float
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    agreed: int
    expected: int
    unknown_fields: tuple[tuple[str, int], ...]
    causes: tuple[Cause, ...]  # of the rows that failed in this run
    deprecated_fields: tuple[tuple[str, int], ...] = ()
    incomplete: int = 0  # of `failed`: answers that were cut
    reused: int = 0  # of `completed`: they have the answers of equal lines
    groups: int = 0  # of lines that begin alike: those that are sent are sent together
    shared_tokens: int = 0  # about so many, of prompts, that an earlier line of a group has, too
    not_durable: int = 0  # jobs that did not reach the requested durability when they were submitted
    work: Work = NO_WORK  # computed while this run ran
    spent: Spent = NOTHING_SPENT

    @property
    def without_answers(self) -> bool:
        """Nothing succeeded, now or before, although there were lines to run."""
        return not self.completed and self.skipped == self.skipped_failed and self.failed + self.skipped > 0

    @property
    def rows_per_second(self) -> float:
        return per_second(self.work.rows, self.seconds)

    @property
    def prompt_tokens_per_second(self) -> float:
        return per_second(self.work.prompt_tokens, self.seconds)

    @property
    def output_tokens_per_second(self) -> float:
        return per_second(self.work.output_tokens, self.seconds)

    def cost_per_thousand_rows(self, price_per_hour: float) -> float | None:
        """The cost of 1,000 completed rows, of all runs of this output; None without such rows."""
        return cost(price_per_hour, self.spent.seconds, self.spent.rows / 1e3)

    def cost_per_million_tokens(self, price_per_hour: float) -> float | None:
        """The same for a million output tokens."""
        return cost(price_per_hour, self.spent.seconds, self.spent.output_tokens / 1e6)


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """`completed` and `failed` count this run, `skipped` the lines that have their row from earlier ones.
    `groups` and `shared_tokens` are properties of IN, as those of `Summary`.
    """

    lines: int  # of the input, that are not blank
    completed: int
    failed: int
    skipped: int
    under_way: int  # jobs, and prompts that wait for an equal line's answer
    seconds: float  # from the first submission
    groups: int = 0  # of lines that begin alike, and are sent together
    shared_tokens: int = 0  # about so many, of prompts, that an earlier line of a group has, too

    @property
    def done(self) -> int:
        return self.completed + self.failed + self.skipped


def per_second(count: int, seconds: float) -> float:
    return count / seconds if seconds else 0.0


def cost(price_per_hour: float, seconds: float, units: float) -> float | None:
    """The cost of one unit; None without units."""
    return price_per_hour * seconds / 3600 / units if units and seconds else None


class Tally:
    """Mutable; one per run."""

    def __init__(self) -> None:
        self.completed = 0
        self.reused = 0
        self.failed = 0
        self.skipped = 0
        self.skipped_failed = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.agreed = 0
        self.expected = 0
        self.not_durable = 0
        self.incomplete = 0
        self.groups = 0
        self.shared_tokens = 0
        self.found = 0  # of `completed`: computed before this run began
        self.pace = Pace()
        self.deprecated: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()  # by `note_names`, in bounded memory
        self._causes = Causes()
        self._ttft: array[float] = array("d")
        self._tpot: array[float] = array("d")

    @property
    def done(self) -> int:
        return self.completed + self.failed + self.skipped

    @property
    def ended(self) -> int:
        """In this run."""
        return self.completed + self.failed

    def spent(self, seconds: float) -> Spent:
        """By this run, which has taken so long."""
        return Spent(seconds, self.completed - self.found, self.pace.total.output_tokens)

    def add(
        self, result: Result, expected: str | None, work: Work, each: Sequence[Result] | None = None
    ) -> None:
        """Count one completed line; `expected`: the answer that it expects; `work`: the part of it that was
        computed in this run; `each`: the results of its jobs, if they are several.
        """
        self.completed += 1
        self.found += not work.rows and not result.cached
        self.prompt_tokens += result.usage.prompt_tokens
        self.cached_tokens += result.usage.cached_tokens
        self.output_tokens += result.usage.output_tokens
        for one in each or (result,):
            self._time(one)
        self._compare((result.choices[0].content or "") if result.choices else None, expected)

    def reuse(self, text: str | None, expected: str | None) -> None:
        """Count one line that got the answer of an equal one; `text`: of its first choice."""
        self.completed += 1
        self.reused += 1
        self._compare(text, expected)

    def fail(self, row: Mapping[str, Any]) -> None:
        """Count one row of the error file."""
        self.failed += 1
        self._causes.add(row)

    def skip(self, *, failed: bool) -> None:
        """Count one line that has its row; `failed`: an error row."""
        self.skipped += 1
        self.skipped_failed += failed

    def _compare(self, text: str | None, expected: str | None) -> None:
        if expected is not None:
            self.expected += 1
            self.agreed += text is not None and agrees(text, expected)

    def _time(self, result: Result) -> None:
        first, last = result.timing.first_token_ms, result.timing.last_token_ms
        if first is None:
            return
        self._ttft.append(first - result.timing.submitted_ms)
        tokens = max(len(choice.token_ids) for choice in result.choices) if result.choices else 0
        if last is not None and tokens > 1:
            self._tpot.append((last - first) / (tokens - 1))

    def summary(self, seconds: float, earlier: Spent = NOTHING_SPENT) -> Summary:
        """`earlier`: by the runs before this one, which has taken so many seconds."""
        counts = {one.name: getattr(self, one.name) for one in fields(Summary) if one.name in vars(self)}
        return Summary(
            **counts,
            seconds=seconds,
            ttft_ms=Percentiles.of(self._ttft),
            tpot_ms=Percentiles.of(self._tpot),
            unknown_fields=tuple(self.unknown.most_common()),
            causes=self._causes.commonest(),
            deprecated_fields=tuple(self.deprecated.most_common()),
            work=self.pace.total,
            spent=earlier + self.spent(seconds),
        )


def agrees(text: str, expected: str) -> bool:
    """Equal except for case, white space around and between words, and a full stop at the end."""
    return _plain(text) == _plain(expected)


def _plain(text: str) -> str:
    return " ".join(text.split()).removesuffix(".").casefold()
