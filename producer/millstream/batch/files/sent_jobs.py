"""Which jobs of a run the server has, as far as the run knows: a job is noted before it is sent, and a reply
may be lost.
"""

from __future__ import annotations

from collections.abc import Iterable

from millstream.openai.prompt_list import job_count


class SentJobs:
    """Mutable; one per run. Jobs of a list of prompts have one name. Each job is accepted (the server has
    it), absent (the server does not) or unknown: it was sent, and no reply has come.
    """

    def __init__(self) -> None:
        self._accepted: set[str] = set()  # own ids
        self._absent: set[str] = set()

    def intends(self, own_ids: Iterable[str]) -> None:
        """Add jobs that were never sent."""
        self._absent.update(own_ids)

    def sends(self, own_ids: Iterable[str]) -> set[str]:
        """Until the replies, nobody knows. Returns those of which that is new: a refusal then means that the
        server does not have them.
        """
        known = self._absent.intersection(own_ids)
        self._absent -= known
        return known

    def refused(self, own_id: str) -> None:
        self._absent.add(own_id)

    def accepted(self, own_id: str) -> None:
        self._absent.discard(own_id)
        self._accepted.add(own_id)

    def ends(self, own_id: str) -> None:
        self._absent.discard(own_id)
        self._accepted.discard(own_id)

    @property
    def accepted_count(self) -> int:
        """The number of jobs that the server has accepted."""
        return job_count(self._accepted)

    @property
    def absent_count(self) -> int:
        """The number of jobs that it does not have."""
        return job_count(self._absent)
