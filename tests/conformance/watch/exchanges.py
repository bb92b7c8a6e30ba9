"""A request and its answer, as they went over the wire."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"
TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Exchange:
    """`asked`: the request's body; `told`: the answer's, of a stream all events."""

    path: str
    asked: Mapping[str, Any]
    status: int
    told: bytes

    @property
    def is_streamed(self) -> bool:
        return bool(self.asked.get("stream"))


def post(url: str, asked: Mapping[str, Any], path: str = CHAT) -> Exchange:
    request = urllib.request.Request(
        url + path, json.dumps(asked).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return Exchange(path, asked, answer.status, answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Exchange(path, asked, error.code, error.read())
