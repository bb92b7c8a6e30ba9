"""Deltas and results as msgpack, written by hand: the same bytes as the protocol's models produce (a test
compares them), without building a model per flush. Fields that equal their default are left out.

Log-probabilities are packed once, when a token is sampled: the objects for one token with its 20 most likely
alternatives take 6 KB, the bytes less than one. Everywhere `logprobs` is a list of such bytes, one per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import Result

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
    """Fewest bytes of a `token_logprob` with `top` alternatives: ids of one byte, tokens without text."""
    one = len(codec.pack(top_logprob(0, "", 0.0)))
    return one + (len(codec.pack("top")) + 1 + top * one if top else 0)


def delta(choices: Sequence[Plain]) -> bytes:
    """The body of one token log entry."""
    return _with_choices({"choices": choices} if choices else {})


def tool_call(own_id: str, name: str, arguments: str) -> Plain:
    return {"id": own_id, "function": {"name": name, "arguments": arguments}}


def part(kind: type[codec.Message], **fields: Any) -> Plain:
    """The fields of a `kind` that differ from their default, in its order; `fields` are in any. Of some only
    None is none: an empty list of logprobs is that of no tokens, and a choice that is not `complete` says so.
    """
    return {
        name: value
        for name, known in kind.model_fields.items()
        if (value := fields.get(name)) != known.default and (value or (name in _ALL and value is not None))
    }


def result(**fields: Any) -> bytes:
    """A job's result, as it is stored. `fields`: those of a Result, in any order."""
    models = {name: fields[name] for name in ("error", "timing") if fields[name] is not None}
    dumped = {name: model.model_dump(exclude_defaults=True) for name, model in models.items()}
    return _with_choices(part(Result, **fields | dumped))


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
