"""Values of extreme shapes through the readers of requests: a worker's, the lines of a batch, the client's,
and the gateway's. What their nets would catch is a violation: a bound should have caught it before.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from support.models.spelling import CALLING_TEMPLATE
from support.workers.counting_worker import write_tokenizer
from support.workers.jobs import held_job

from fuzz import valid
from fuzz.gateway_reply import check_reply
from fuzz.in_process_gateway import FREE_KEY, MOST_BODY, in_process_gateway
from fuzz.shapes import openai_body, wire_request
from fuzz.target import Refused, Target, check
from fuzz.targets.batch import CHAT, COMPLETIONS, read_line
from fuzz.targets.jobs import BOUNDS, ENGINE
from millstream.batch.rows.faults import FaultCode, LineFault
from millstream.client.submit.requests import draft
from millstream.errors import InvalidRequest
from millstream.wire.messages.script_replies import StartReply
from millstream.wire.messages.validation_errors import WHOLE
from millstream_worker.intake.preparation.prepare_job import prepare
from millstream_worker.jobs.engine_request import engine_request
from millstream_worker.jobs.equal_jobs.cache_key import cache_key
from millstream_worker.jobs.served_model import ServedModel
from millstream_worker.text.model import TextModel

_URLS = (CHAT, COMPLETIONS)


@cache
def _served() -> ServedModel:
    """One whose template writes calls, and so reads their arguments."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = write_tokenizer(Path(folder), chat=True, template=CALLING_TEMPLATE)
        return ServedModel(TextModel.load(tokenizer, valid.VOCAB), replace(ENGINE, digest="d"))


def _prepare(payload: bytes) -> None:
    job, served = held_job(payload=payload), _served()
    try:
        prepare(job, StartReply(True, 1, 0), served.text, served.info, BOUNDS)
    except InvalidRequest as error:
        check(error.field and error.problem, "no field, or no remedy")
        check(type(error.value) is not str or "Error" not in error.value, "no bound has caught it")
        raise
    cache_key(job, served)
    engine_request(job)


def _line(chance: Random) -> bytes:
    url = chance.choice(_URLS)
    body = openai_body(chance, chat=url == CHAT)
    return b'{"custom_id":"a","method":"POST","url":"%b","body":%b}' % (url.encode(), body)


def _read_line(data: bytes) -> None:
    try:
        read_line(data)
    except LineFault as fault:
        check(fault.code != FaultCode.UNREADABLE_REQUEST, f"{fault} {fault.__cause__!r:.300}")
        check("OverflowError" not in fault.message, f"no bound has caught it: {fault}")  # too deep may be all
        raise


def _fields(chance: Random) -> dict[str, Any]:
    """As a program gives them to the client: what Python reads of a body."""
    chat = chance.random() < 0.6
    while True:
        try:
            fields: Any = json.loads(openai_body(chance, chat=chat))
        except (ValueError, RecursionError):
            continue
        if isinstance(fields, dict):
            return {
                name: value for name, value in fields.items() if name not in ("model", "user", "guided_json")
            }


def _submit(fields: dict[str, Any]) -> None:
    try:
        draft(fields, 0, 2**20)
    except InvalidRequest as error:
        check(error.field != WHOLE, f"no bound has caught it: {error}")
        raise


def _post(chance: Random) -> bytes:
    url = chance.choice(_URLS)
    body = openai_body(chance, chat=url == CHAT)[: MOST_BODY + 1]
    head = f"POST {url} HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nAuthorization: Bearer {FREE_KEY}\r\n"
    return head.encode() + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


def _ask(data: bytes) -> None:
    check_reply(in_process_gateway().ask(data, leaves=False))


TARGETS = (
    Target("shapes-worker", wire_request, _prepare, (InvalidRequest,), share=22),
    Target("shapes-lines", _line, _read_line, (LineFault, InvalidRequest), share=18),
    Target("shapes-client", _fields, _submit, (InvalidRequest,), share=17.5),
    Target("shapes-http", _post, _ask, (Refused,), share=1.2),
)
