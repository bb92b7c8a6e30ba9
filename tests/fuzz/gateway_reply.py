"""What must hold for each answer of a gateway whose server, store and worker are there."""

from __future__ import annotations

import gzip
import json
from typing import Any

from fuzz.http_exchange import Reply
from fuzz.in_process_gateway import KEYS, in_process_gateway
from fuzz.target import Refused
from millstream.gateway.gateway_metrics import CLIENT_GONE

_KNOWN_5XX = {501: {"not_implemented"}, 503: {"no_worker"}}  # the server and the store are there


def check_reply(reply: Reply) -> None:
    """Raises Refused for an error as it should be."""
    if not reply.status or reply.status == CLIENT_GONE:
        raise Refused("the client had gone")
    assert reply.headers.get("x-request-id", "").startswith("req_"), "no x-request-id"
    body = gzip.decompress(reply.body) if _is_compressed(reply) else reply.body
    _check_hidden(body)
    if reply.status >= 400:
        raise Refused(_said(reply, body))
    if reply.headers.get("content-type") == "application/json" and reply.method != "HEAD":
        json.loads(body, parse_constant=_no_constant)


def _is_compressed(reply: Reply) -> bool:
    compressed = reply.headers.get("content-encoding") == "gzip"
    return compressed and reply.ended and reply.method != "HEAD"


def _check_hidden(body: bytes) -> None:
    gateway = in_process_gateway()
    for secret in (str(gateway.folder), f":{gateway.server.port}", "redis", "Traceback", 'File "', *KEYS):
        assert secret.encode() not in body, f"the answer tells {secret!r}"


def _said(reply: Reply, body: bytes) -> str:
    """The error, which is one of OpenAI's."""
    assert reply.status in (400, 401, 403, 404, 405, 409, 413, 415, 416, 429, *_KNOWN_5XX), (
        f"{reply.status}: {body!r}"
    )
    if reply.method == "HEAD":
        return f"{reply.status}"
    whole = json.loads(body)
    assert set(whole) == {"error"}, body
    error = whole["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    assert error["message"], "no message"
    assert all(isinstance(error[name], str) for name in ("message", "type", "code")), error
    assert error["param"] is None or isinstance(error["param"], str), error
    assert error["code"] in _KNOWN_5XX.get(reply.status, {error["code"]}), error
    return f"{reply.status} {error['message']}"


def _no_constant(name: str) -> Any:
    raise AssertionError(f"{name} in an answer")
