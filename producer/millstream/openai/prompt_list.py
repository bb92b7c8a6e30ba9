"""Reads a completion's list of prompts, each of which is a request and a job of its own, and makes one answer
of theirs: the choices of prompt p have the places p·n to p·n + n - 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from millstream.errors import InvalidRequest
from millstream.wire.messages.choices import Choice
from millstream.wire.messages.job_messages import ErrorInfo, Result, Timing, Usage

MOST_PROMPTS = 256
_MANY = "+"  # no own id of a job has it


def prompt_inputs(prompt: Any) -> list[tuple[str, dict[str, Any]]]:
    """The field of each prompt, and what a request has of it. Raises InvalidRequest."""
    if not isinstance(prompt, list) or not prompt or not isinstance(prompt[0], str | list):
        return [("prompt", _input("prompt", prompt, "give a text, a list of token ids, or a list of these"))]
    if len(prompt) > MOST_PROMPTS:
        problem = f"has {len(prompt)} prompts; give at most {MOST_PROMPTS}, and the others in other requests"
        raise InvalidRequest("prompt", prompt, problem)
    fields = [f"prompt[{place}]" for place in range(len(prompt))]
    asked = zip(fields, prompt, strict=True)
    return [(field, _input(field, one, "give a text, or a list of token ids")) for field, one in asked]


def _input(field: str, prompt: Any, problem: str) -> dict[str, Any]:
    if isinstance(prompt, str) and prompt:
        return {"prompt": prompt}
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return {"token_ids": tuple(prompt)}
    raise InvalidRequest(field, prompt, problem)


def prompt_ids(own_id: str, prompts: int) -> list[str]:
    """The own ids of the jobs of so many prompts, in their order; a single job has the id itself."""
    return [own_id] if prompts == 1 else [f"{own_id}-{place}" for place in range(prompts)]


def listed_id(own_id: str, prompts: int) -> str:
    """One name for the jobs of so many prompts; that of a single job is its own id."""
    return own_id if prompts == 1 else f"{own_id}{_MANY}{prompts}"


def own_ids(listed: str) -> list[str]:
    """The own ids of the jobs that `listed_id` names, in the order of their prompts."""
    own_id, _, prompts = listed.partition(_MANY)
    if not prompts.isdecimal() or int(prompts[:4]) > MOST_PROMPTS:
        return [listed]
    return [f"{own_id}-{place}" for place in range(int(prompts))]


def job_count(listed: Iterable[str]) -> int:
    """The number of jobs that these names have together."""
    return sum(len(own_ids(name)) for name in listed)


def joined_result(results: Sequence[Result]) -> Result:
    """One answer of the answers to all prompts. Its times are from the first one's begin to the last one's
    end.
    """
    if len(results) == 1:
        return results[0]
    choices: list[Choice] = []
    for result in results:
        before = len(choices)
        choices += [one.model_copy(update={"index": before + one.index}) for one in result.choices]
    made = {
        "choices": tuple(choices),
        "usage": joined_usage([result.usage for result in results]),
        "timing": _joined_timing([result.timing for result in results]),
        "cached": all(result.cached for result in results),
    }
    return results[0].model_copy(update=made)


def joined_usage(usages: Sequence[Usage]) -> Usage:
    return Usage(**{name: sum(getattr(usage, name) for usage in usages) for name in Usage.model_fields})


def _joined_timing(timings: Sequence[Timing]) -> Timing:
    made: dict[str, Any] = {}
    for name in Timing.model_fields:
        known = [at for timing in timings if (at := getattr(timing, name)) is not None]
        chosen = max if name in ("last_token_ms", "finished_ms") else min
        made[name] = chosen(known, default=None)
    return Timing(**made)


def error_as_sent(error: ErrorInfo, sent: Mapping[str, str], place: int, prompts: int) -> ErrorInfo:
    """The error of one of so many prompts, or of a chat, by the field that was sent. `sent`: as RequestImages
    has it.
    """
    return _renamed(error, sent.get(error.field or "")) or error_of_prompt(error, place, prompts)


def error_of_prompt(error: ErrorInfo, place: int, prompts: int) -> ErrorInfo:
    """The error of one of so many prompts, by the name that this has among them."""
    name, *rest = (error.field or "").partition("[")
    if prompts == 1 or name not in ("prompt", "token_ids"):
        return error
    return _renamed(error, f"prompt[{place}]{''.join(rest)}") or error


def _renamed(error: ErrorInfo, field: str | None) -> ErrorInfo | None:
    """The same error of a field by its other name; None: it has none."""
    if field is None:
        return None
    told = error.message
    if told.startswith(str(error.field)):
        told = field + told.removeprefix(str(error.field))
    return error.model_copy(update={"field": field, "message": told})
