"""Deltas and results as msgpack, written by hand: the same bytes as the protocol's models produce (a test
compares them), without building a model per flush. Fields that equal their default are left out.

Log-probabilities are packed once, when a token is sampled: the objects for one token with its 20 most likely
alternatives take 6 KB, the bytes less than one. Everywhere `logprobs` is a list of such bytes, one per token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgpack

from millstream.wire.messages import codec
from millstream.wire.messages.choices import Choice, ChoiceDelta
from millstream.wire.messages.job_messages import ErrorInfo, State, Timing, Usage
from millstream.wire.versions import FIRST_VERSION

Plain = dict[str, Any]
_ALL = ("logprobs", "complete", "seed", "prompt_token_ids")


def top_logprob(token_id: int, token: str, logprob: float, own_bytes: Sequence[int] | None = None) -> Plain:
    """`own_bytes`: only where the token's text does not show them."""
    fields: Plain = {"token_id": token_id, "token": token, "logprob": logprob}
    return fields if own_bytes is None else fields | {"bytes": list(own_bytes)}


def token_logprob(fields: Plain, top: Sequence[Plain]) -> bytes:
    """One token's entry, packed; `fields`: as of one of the most likely ones."""
    return codec.pack(fields | {"top": list(top)} if top else fields)


def least_logprob_bytes(top: int) -> int:
    """Fewest bytes that `token_logprob` returns with `top` alternatives: ids of one byte, tokens without
    text.
    """
    one = len(codec.pack(top_logprob(0, "", 0.0)))
    return one + (len(codec.pack("top")) + 1 + top * one if top else 0)


def choice_delta(**fields: Any) -> Plain:
    """`fields`: those of a ChoiceDelta, in any order."""
    return _set(**{name: fields.get(name) for name in ChoiceDelta.model_fields})


def delta(choices: Sequence[Plain]) -> bytes:
    """The body of one token log entry."""
    return _with_choices({"choices": choices} if choices else {})


def choice(**fields: Any) -> Plain:
    """`fields`: those of a Choice, in any order."""
    return _set(**{name: fields.get(name) for name in Choice.model_fields})


def tool_call(own_id: str, name: str, arguments: str) -> Plain:
    return {"id": own_id, "function": {"name": name, "arguments": arguments}}


def usage(**tokens: int) -> Plain:
    """Numbers of tokens by their names in Usage."""
    return {name: tokens[name] for name in Usage.model_fields if tokens.get(name)}


def result(
    *,
    state: State,
    choices: Sequence[Plain],
    usage: Plain,
    error: ErrorInfo | None,
    timing: Timing,
    facts: Mapping[str, str],
    cached: bool,
    attempts: int,
    seed: int | None,
    metadata: dict[str, str],
    prompt_token_ids: Sequence[int] | None = None,
    sampling: Plain | None = None,
    version: int = FIRST_VERSION,
) -> bytes:
    """A job's result, as it is stored. `facts`: fields that say what computed it, by name."""
    fields = _set(
        version=None if version == FIRST_VERSION else version,
        state=None if state is State.COMPLETED else state.value,
        choices=choices,
        usage=usage,
        error=error and error.model_dump(exclude_defaults=True),
        timing=timing.model_dump(exclude_defaults=True),
        **facts,
        cached=cached,
        attempts=None if attempts == 1 else attempts,
        seed=seed,
        metadata=metadata,
        prompt_token_ids=prompt_token_ids,
        sampling=sampling,
    )
    return _with_choices(fields)


def _set(**fields: Any) -> Plain:
    """The fields that differ from their default, in the models' order. Of some only None is none: an empty
    list of logprobs is that of no tokens, and a choice that is not `complete` says so.
    """
    return {name: value for name, value in fields.items() if value or (name in _ALL and value is not None)}


def _with_choices(fields: Plain) -> bytes:
    """A map whose `choices` may hold packed log-probabilities."""
    choices = fields.get("choices", ())
    if not any("logprobs" in one for one in choices):
        return codec.pack(fields)
    return _map(fields, "choices", [_map(one, "logprobs", one.get("logprobs", ())) for one in choices])


def _map(fields: Plain, packed_name: str, packed: Sequence[bytes]) -> bytes:
    """A map with one field whose value is a list of already packed values."""
    packer = msgpack.Packer()
    parts: list[bytes] = [packer.pack_map_header(len(fields))]
    for name, value in fields.items():
        parts.append(codec.pack(name))
        if name == packed_name:
            parts += [packer.pack_array_header(len(packed)), *packed]
        else:
            parts.append(codec.pack(value))
    return b"".join(parts)
