"""A job's request, and what the engine is given of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from millstream.wire.messages.job_messages import Request
from millstream.wire.messages.script_replies import StartReply
from millstream_worker.engine.protocol.request import GrammarSpec, LimitSpec


@dataclass(slots=True, eq=False)
class JobInput:
    request: Request
    put_off: StartReply | None = None  # until it is read
    unread_bytes: int = 0  # of its message and log, where these are long
    prompt: tuple[int, ...] = ()
    prediction: tuple[int, ...] = ()
    max_tokens: int = 0
    defaulted: dict[str, Any] = field(default_factory=dict)  # sampling parameters set by the model's defaults
    end_ids: tuple[int, ...] = ()
    grammar: GrammarSpec | None = None
    limits: LimitSpec | None = None
    cache_key: bytes = b""  # equal for jobs that have one answer; empty: its answer is its own

    @property
    def shown_prompt(self) -> tuple[int, ...] | None:
        """Returns the prompt's ids, if its result has them. A job that ends unread has none."""
        return self.prompt or None if self.request.return_token_ids else None
