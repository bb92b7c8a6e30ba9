"""An attempt at a job, and the engines and workers that it has cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """`max_died` deaths of engines and workers make a job a suspect, which runs isolated; `max_died_alone`
    deaths in isolation make it a dead letter. Other deaths never do.
    """

    max_attempts: int
    max_died: int
    max_died_alone: int


@dataclass(slots=True, eq=False)
class JobAttempt:
    number: int
    died: int  # engines and workers that died with it before this worker had it
    died_alone: int = 0  # those of them in isolation
    seed: int = 0  # sampled, for a request that has none
    alone: bool = False  # suspect of having killed an engine: runs in a batch of its own
    deaths: int = 0  # of engines here that had it
    deaths_alone: int = 0

    @property
    def losses(self) -> int:
        return self.died + self.deaths

    @property
    def losses_alone(self) -> int:
        return self.died_alone + self.deaths_alone
