"""Sends a row to a server, and reads from the answer what it made of it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from conformance.requests.rows import Row

AT_ONCE = 4
TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` 0: there was none. A stream that ends with an error has 500, unless the error says another."""

    status: int
    message: str = ""
    param: str | None = None
    ignored: tuple[str, ...] = ()


def answers(url: str, rows: Sequence[Row]) -> dict[Row, Answer]:
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return dict(zip(rows, threads.map(lambda row: sent(url, row), rows), strict=True))


def sent(url: str, row: Row) -> Answer:
    request = urllib.request.Request(
        url + row.path, json.dumps(row.body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            ignored = answer.headers.get("x-millstream-ignored", "")
            return _taken(answer.read(), tuple(name for name in ignored.split(", ") if name))
    except urllib.error.HTTPError as error:
        with error:
            return _refused(error.code, error.read())
    except OSError as error:
        return Answer(0, str(error))


def _taken(body: bytes, ignored: tuple[str, ...]) -> Answer:
    for line in body.splitlines():
        if line.startswith(b'data: {"error"'):
            return _refused(500, line.removeprefix(b"data: "))
    return Answer(200, ignored=ignored)


def _refused(status: int, body: bytes) -> Answer:
    try:
        error: Any = json.loads(body)["error"]
        code = error["code"] if isinstance(error.get("code"), int) else status  # vLLM's is a status
        return Answer(code, str(error.get("message")), error.get("param"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return Answer(status, body.decode(errors="replace"))
