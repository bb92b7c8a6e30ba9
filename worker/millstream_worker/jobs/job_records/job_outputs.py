"""The output of a job: its choices, and how they came about."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.wire.messages import codec
from millstream.wire.messages.choices import Choice
from millstream_worker.jobs import encoding
from millstream_worker.jobs.encoding import Plain
from millstream_worker.jobs.output import ChoiceOutput


@dataclass(slots=True, eq=False)
class JobOutputs:
    rows: list[ChoiceOutput] = field(default_factory=list)
    earlier: tuple[Choice, ...] = ()  # output of earlier attempts, if it ends unread
    handle: int = 0  # of its first row in the engine that runs now
    cached: bool = False  # its answer is that of an equal job
    cached_tokens: int | None = None  # found when it entered the batch of an engine here; None: it never did
    draft_tokens: int = 0  # verified here
    accepted_draft_tokens: int = 0

    @property
    def tokens(self) -> int:
        return sum(len(row.ids) for row in self.rows)

    @property
    def unlogged_tokens(self) -> int:
        return sum(len(row.ids) - row.logged for row in self.rows)

    def choices(self) -> list[Plain]:
        """Returns those of the result."""
        return [row.choice() for row in self.rows] or [_plain(choice) for choice in self.earlier]

    def usage(self, prompt_tokens: int) -> Plain:
        earlier = sum(len(choice.token_ids) for choice in self.earlier)
        return encoding.usage(
            prompt_tokens=prompt_tokens,
            cached_tokens=self.cached_tokens or 0,
            output_tokens=sum(row.logged for row in self.rows) + earlier,
            draft_tokens=self.draft_tokens,
            accepted_draft_tokens=self.accepted_draft_tokens,
        )


def _plain(choice: Choice) -> Plain:
    fields = {name: getattr(choice, name) for name in Choice.model_fields}
    logprobs = [codec.encode(logprob) for logprob in choice.logprobs or ()] or None
    calls = [one.model_dump(exclude_defaults=True) for one in choice.tool_calls]
    return encoding.choice(**fields | {"logprobs": logprobs, "tool_calls": calls})
