"""What a program gives to the client: jobs and options."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from fuzz import valid
from fuzz.mutation import mutate
from fuzz.target import Target
from fuzz.values import subset, wild
from millstream.client.session.options import ClientOptions
from millstream.client.submit.requests import draft
from millstream.errors import InvalidRequest
from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import Request

_FORMAT = {"type": "object", "properties": {"a": {"type": "string"}}}
_OPENAI = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": _FORMAT}}
NOW_MS = 1_700_000_000_000


def _fields(chance: Random) -> Any:
    given = valid.job_input(chance) | valid.sampling(chance)
    optional: dict[str, Any] = {
        "id": "invoice-17", "lane": chance.choice(("batch", "interactive")), "tenant": "t",
        "deadline_s": chance.choice((1, 0.5, 1e-9, 3e8)), "metadata": {"a": "b"}, "stream": True,
        "prediction": chance.choice(("a", {"type": "content", "content": "a"})), "traceparent": "00-a",
        "sampling": None, "request": None,
    }  # fmt: skip
    form = chance.choice(("json", "regex", "grammar", "choice"))
    formats: dict[str, Any] = {
        "response_format": chance.choice(({"type": "json_object"}, _OPENAI)),
        "structured_outputs": {form: _FORMAT},
    }
    given |= subset(chance, optional, 0.3) | subset(chance, formats, 0.2)
    if "messages" in given and chance.random() < 0.3:
        given["messages"][-1] = {"role": "user", "content": valid.content(chance)}
    if "messages" in given and chance.random() < 0.5:
        given["chat_template_kwargs"] = {"enable_thinking": False, "style": ["é", None, 0.5]}
    return given if chance.random() < 0.15 else mutate(chance, given, wild)


def _submit(case: Any) -> None:
    made = draft(case, NOW_MS, 2**20)
    request = codec.decode(Request, made.payload)
    assert len(made.payload) <= 2**20
    assert codec.encode(request) == made.payload, "the worker reads something else"
    numbers = request.sampling.model_dump(exclude_defaults=True).values()
    assert all(math.isfinite(value) for value in numbers if isinstance(value, float))


def _options(chance: Random) -> dict[str, Any]:
    given: dict[str, Any] = {
        "max_entries": 9, "max_bytes": 99, "max_payload_bytes": 99, "result_ttl_s": 9.5, "timeout_s": 1.0,
        "reconnect_s": 0.0, "connections": 2, "stream_buffer": 9, "name": "c", "shards": 2,
        "durability": chance.choice(("none", "aof", "replicas")),
        "durability_replicas": chance.choice((None, 0, 1)), "durability_timeout_s": 1.0,
    }  # fmt: skip
    changed = mutate(chance, subset(chance, given, 0.6), wild, most=2)
    changed = changed if isinstance(changed, dict) else {}
    return {name: value for name, value in changed.items() if name in set(given)}


def _set_options(case: dict[str, Any]) -> None:
    options = ClientOptions(**case)
    assert options.result_ttl_ms >= 1
    assert options.timeout_s > 0


TARGETS = (
    Target("submissions", _fields, _submit, (InvalidRequest,), share=2),
    Target("client-options", _options, _set_options, (InvalidRequest,), share=2),
)
