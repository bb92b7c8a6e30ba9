"""Holds the options of a batch run, and their defaults."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.batch.rows.line_rules import LineRules
from millstream.batch.run.model_watch import OnChange
from millstream.batch.run.window import MESSAGE_BYTES
from millstream.client.submit.submission import LONGEST_PAUSE_S
from millstream.errors import InvalidRequest

DEFAULT_WINDOW = 2000


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that a run gives to a server that takes no rows now."""

    silence_s: float = 60.0  # time limit for retries while the server does not answer, or refuses writes
    again_s: float = LONGEST_PAUSE_S  # longest pause before rows are sent again, for room without limit


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(LineRules):
    window: int = DEFAULT_WINDOW  # jobs under way at once
    keep_results: bool = False  # on the server until they expire, even if their rows are on disk
    on_change: OnChange = OnChange.STOP
    strict_fields: bool = False  # a field that nothing reads stops the run before its first job
    retry_failed: bool = False  # lines of the error file are run again, but those of incomplete answers
    retry_incomplete: bool = False  # those, too
    in_order: bool = False  # lines are sent in the order of the file, not those that begin alike together
    reuse: bool = True  # equal lines whose answers are not sampled are computed once
    # not the user's to choose
    # of lines that are not submitted yet, or small, and their images; with the largest request 128 MiB
    window_bytes: int = 112 * 1024**2
    message_bytes: int = MESSAGE_BYTES
    clear_jobs: int = 256  # ended jobs that are forgotten at once
    patience: Patience = field(default_factory=Patience)

    def __post_init__(self) -> None:
        LineRules.__post_init__(self)
        if self.window < 1:
            raise InvalidRequest("window", self.window, "must be at least 1")
