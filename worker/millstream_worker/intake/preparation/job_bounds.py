"""The bounds of a job: those of the model that serves it, and the operator's. What is beyond them is refused
with the bound and a remedy.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.errors import InvalidRequest
from millstream.wire.messages.job_messages import Request
from millstream_worker.engine.protocol.config import EngineInfo
from millstream_worker.jobs import encoding
from millstream_worker.jobs.context_exceeded import ContextExceeded

_MOST_JOB_TOKENS = 8 * 2**20  # of all its choices with the prompt: they go to an engine in one frame


@dataclass(frozen=True, slots=True)
class JobBounds:
    """The operator's limits per job. Tokens 0: limited only by the context."""

    prompt_tokens: int
    output_tokens: int
    result_bytes: int

    def most_input(self, info: EngineInfo) -> int:
        """Most prompt tokens: at least one output token has to fit, too."""
        held = info.longest_row - 1
        return min(held, self.prompt_tokens) if self.prompt_tokens else held

    def too_long(self, field: str, size: str, info: EngineInfo) -> InvalidRequest:
        """Returns the refusal of an input."""
        if not 0 < self.prompt_tokens < info.longest_row:
            return ContextExceeded.by_input(field, size, info)
        problem = (
            f"this worker takes inputs of {self.prompt_tokens} tokens (its MILLSTREAM_MAX_PROMPT_TOKENS); "
            "shorten it"
        )
        return InvalidRequest(field, size, problem)

    def max_tokens(self, request: Request, prompt_tokens: int, info: EngineInfo) -> int:
        """Output tokens per choice: with the prompt they have to fit into the model's context and the KV
        pool. Raises InvalidRequest if more are asked for.
        """
        limit = info.longest_row
        asked = request.sampling.max_tokens
        if asked is not None and prompt_tokens + asked > limit:
            raise ContextExceeded.by_output(asked, request.input_field, prompt_tokens, info)
        bound = self.output_tokens or limit
        if asked is not None and asked > bound:
            raise InvalidRequest(
                "sampling.max_tokens",
                asked,
                f"this worker gives {bound} tokens (its MILLSTREAM_MAX_OUTPUT_TOKENS); ask for fewer, or "
                "leave max_tokens out",
            )
        choices = request.sampling.n
        most = (_MOST_JOB_TOKENS - prompt_tokens) // choices
        if (asked or 0) > most:
            raise InvalidRequest(
                "sampling.max_tokens",
                asked,
                f"{choices} choices with their input may have {_MOST_JOB_TOKENS} tokens together, {most} "
                "each; ask for fewer tokens or choices",
            )
        return asked or min(limit - prompt_tokens, bound, most)

    def check_result(self, request: Request, prompt_tokens: int) -> None:
        """Raises InvalidRequest if the result cannot fit even if every token is the shortest."""
        asked = request.sampling
        ids = prompt_tokens if request.return_token_ids else 0
        if ids > self.result_bytes:
            raise InvalidRequest(
                "return_token_ids",
                True,
                f"the ids of {ids} prompt tokens take at least as many bytes and a result may take "
                f"{self.result_bytes}; leave it out, or raise the worker's MILLSTREAM_MAX_RESULT_BYTES",
            )
        if asked.max_tokens is None:  # its length is unknown: it is checked while it grows
            return
        a_token = 1 + (encoding.least_logprob_bytes(asked.top_logprobs) if asked.logprobs else 0)
        least = ids + asked.n * asked.max_tokens * a_token
        if least > self.result_bytes:
            raise InvalidRequest(
                "sampling.max_tokens",
                asked.max_tokens,
                f"a result of {asked.n} x {asked.max_tokens} tokens, each of at least {a_token} bytes, may "
                f"take {least} bytes and a result may take {self.result_bytes}; ask for fewer tokens, "
                "choices or top_logprobs, or raise the worker's MILLSTREAM_MAX_RESULT_BYTES",
            )


def check_token_ids(request: Request, vocab_size: int) -> None:
    """Raises InvalidRequest for sampling parameters with tokens that the model does not have."""
    for field, ids in (
        ("sampling.logit_bias", request.sampling.logit_bias),
        ("sampling.stop_token_ids", request.sampling.stop_token_ids),
        ("sampling.allowed_token_ids", request.sampling.allowed_token_ids or ()),
    ):
        beyond = [token_id for token_id in ids if token_id >= vocab_size]
        if beyond:
            problem = f"is beyond the vocabulary of {vocab_size} tokens; use ids below it"
            raise InvalidRequest(field, beyond[0], problem)
