"""Converts what a request says of single tokens to the engine's limits."""

from __future__ import annotations

from millstream.errors import InvalidRequest
from millstream.wire.messages.job_messages import Request
from millstream_worker.engine.protocol.request import LimitSpec, token_bits
from millstream_worker.text.model import TextModel
from millstream_worker.text.reasoning import ThoughtStart


def limits_of(request: Request, start: ThoughtStart, text: TextModel, vocab_size: int) -> LimitSpec | None:
    """Returns the limits of an answer that begins so; None if there are none. Raises InvalidRequest."""
    asked = request.sampling
    words = text.bad_words(asked.bad_words)
    barred = {word[0] for word in words if len(word) == 1}
    if asked.allowed_token_ids is not None and barred.issuperset(asked.allowed_token_ids):
        problem = "bars all of allowed_token_ids; allow other tokens"
        raise InvalidRequest("sampling.bad_words", list(asked.bad_words), problem)
    allowed = None if asked.allowed_token_ids is None else token_bits(asked.allowed_token_ids, vocab_size)
    budget = asked.thinking_token_budget
    if budget is not None and (text.think is None or request.messages is None):
        problem = "needs messages and a model that thinks, by the tokens <think> and </think>; leave it out"
        raise InvalidRequest("sampling.thinking_token_budget", budget, problem)
    if budget is None or text.think is None or start is ThoughtStart.NONE:
        made = LimitSpec(allowed, words)
    else:
        made = LimitSpec(allowed, words, budget, text.think.begin_behind(start), text.think.end)
    return None if made == LimitSpec() else made
