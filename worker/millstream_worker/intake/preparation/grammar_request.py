"""Determines the form of a job's answer: its grammar for the engine, its thought, and calls of tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from millstream.errors import InvalidRequest
from millstream.wire.messages.choices import ChoiceDelta, FinishReason
from millstream.wire.messages.job_messages import Request
from millstream_worker.engine.grammars.calls.call_form import CallForm
from millstream_worker.engine.protocol.request import GrammarSpec, LimitSpec, token_bits
from millstream_worker.jobs.call_output import ToolCallMode
from millstream_worker.text.continued_turn import thought_in
from millstream_worker.text.model import TextModel
from millstream_worker.text.reasoning import ThinkTokens, ThoughtStart


def grammar_of(
    request: Request, start: ThoughtStart, text: TextModel, ends: tuple[int, ...]
) -> GrammarSpec | None:
    """Returns the grammar of the answer; None if it may be anything. `ends`: tokens that end it, beside the
    model's own. Raises InvalidRequest.
    """
    asked = request.response_format
    made = None
    if asked is not None:
        made = GrammarSpec(asked.type, asked.text, asked.compact, asked.whitespace_pattern, ends=ends)
    if request.may_call:
        made = replace(
            _tools(request, text, start), ends=ends, answer=made if request.calling == "auto" else None
        )
        _check_beside_calls(made, text)
    if made is None or text.think is None or start is ThoughtStart.NONE:
        return made
    think = text.think
    return replace(
        made, thought_begin=think.begin_behind(start), thought_end=think.end, channels=think.header
    )


def thought_start(request: Request, prompt: Sequence[int], text: TextModel) -> ThoughtStart:
    """Returns where the answer stands with its thought. Only a chat's are separated from the text."""
    if request.messages is None or text.think is None:
        return ThoughtStart.NONE
    return thought_in(request) or text.thought_start(prompt)


def has_thought_in_text(deltas: Sequence[ChoiceDelta], start: ThoughtStart, text: TextModel) -> bool:
    """True if a worker of version 0.2.0 or earlier has begun this choice: its thought stands in its text,
    which goes on so.
    """
    logged = "".join(delta.text for delta in deltas)
    reader = text.thought(start)
    if not logged or reader is None or any(delta.reasoning_content for delta in deltas):
        return False
    ids = [token for delta in deltas for token in delta.token_ids]
    answer, plain = text.detokenizer().feed(reader.feed(ids).answer), text.detokenizer().feed(ids)
    return plain.startswith(logged) and not answer.startswith(logged)


def tool_call_mode(
    request: Request, job_id: str, text: TextModel, start: ThoughtStart
) -> ToolCallMode | None:
    """Returns how the answer may call tools; None if it may not."""
    if not request.may_call:
        return None
    # As OpenAI's: who names the function knows that it is called.
    reason: FinishReason = "stop" if request.calling == "function" else "tool_calls"
    functions = {one.name: one.parameters for one in request.tools or ()}
    may_be_text = request.calling == "auto"
    has_format = request.response_format is not None
    form = _call_form(text, start)
    return ToolCallMode(
        job_id, form, functions, reason, may_be_text and not has_format, may_be_text and has_format
    )


def _call_form(text: TextModel, start: ThoughtStart) -> CallForm:
    """The form of an answer that begins so: one that the prompt has begun has no head of its own."""
    return replace(text.call_form, answer="") if start is ThoughtStart.NONE else text.call_form


def _check_beside_calls(spec: GrammarSpec, text: TextModel) -> None:
    """Raises InvalidRequest for a format that could not be told from a call."""
    if (answer := spec.answer) is None or text.call_form.tag:
        return
    if not answer.type.startswith("json") or answer.compact or answer.whitespace_pattern:
        problem = (
            "cannot be told from a call, for which this model's chat template has no tag; ask for JSON, not "
            'compact and without a whitespace_pattern, or choose tool_choice "required" or "none"'
        )
        raise InvalidRequest("response_format", answer.type, problem)


def _tools(request: Request, text: TextModel, start: ThoughtStart) -> GrammarSpec:
    assert request.tools is not None, "there are none to call"
    known = text.own_call_form
    if request.calling == "auto" and isinstance(known, str):
        problem = (
            f"cannot be kept: this model's chat template writes calls in a form not built here ({known})"
        )
        raise InvalidRequest(
            "tool_choice", "auto", f'{problem}; choose "required", a function by its name, or "none"'
        )
    named = request.tool_choice.name if request.calling == "function" and request.tool_choice else None
    functions = [[one.name, one.parameters, one.strict] for one in request.tools if named in (None, one.name)]
    form = {
        "functions": functions,
        "many": request.parallel_tool_calls and named is None,
        "free": request.calling == "auto",
        "form": _call_form(text, start).plain(),
        "tokens": text.call_tokens,
    }
    return GrammarSpec("tools", json.dumps(form, ensure_ascii=False))


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
    think = text.think if isinstance(text.think, ThinkTokens) else None
    if budget is not None and (think is None or request.messages is None):
        problem = "needs messages and a model that thinks, by the tokens <think> and </think>; leave it out"
        raise InvalidRequest("sampling.thinking_token_budget", budget, problem)
    if budget is None or think is None or start is ThoughtStart.NONE:
        made = LimitSpec(allowed, words)
    else:
        made = LimitSpec(allowed, words, budget, think.begin_behind(start), think.end)
    return None if made == LimitSpec() else made
