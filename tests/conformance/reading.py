"""The end of a request at the gateway's door, in this process: no server, no worker."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any

from conformance.requests.rows import BASE, Row
from millstream.gateway.auth.api_keys import ANYBODY
from millstream.gateway.completions.completion_request import CompletionRequest, read_completion
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.openai.api_error import ApiError


class Sign(StrEnum):
    DONE = "done"  # the part changes the job, or there is nothing to do for it
    IGNORED = "ignored"
    REFUSED = "refused"
    UNNAMED = "refused, and the error does not name the field"
    NONE = "taken without effect and without a sign"


def sign_of(row: Row) -> Sign:
    found = _read(row.path, row.body)
    if isinstance(found, ApiError):
        return Sign.REFUSED if names(row, found.param, found.message) else Sign.UNNAMED
    if is_named(row, found.ignored):
        return Sign.IGNORED
    without = _read(row.path, row.without_part())
    changes = isinstance(without, ApiError) or _decided(found) != _decided(without)
    return Sign.DONE if row.holds or changes else Sign.NONE


def names(row: Row, param: str | None, message: str) -> bool:
    """True if an error says which of the fields it is about that this row adds."""
    added = {row.field, *row.body.keys() - BASE[row.path].keys()}
    return any(field in f"{param} {message}" for field in added)


def is_named(row: Row, ignored: tuple[str, ...]) -> bool:
    """True if the part, or its field, is among the ignored ones, whichever item of a list has it."""
    return not {row.field, re.sub(r"\[\d+\]", "", row.part)}.isdisjoint(ignored)


def _read(path: str, body: Mapping[str, Any]) -> CompletionRequest | ApiError:
    return read_completion(json.dumps(body).encode(), ApiEndpoint(path), ANYBODY)


def _decided(read: CompletionRequest) -> str:
    """All that a body decides: neither the ids of its jobs, nor the names in the answer's header."""
    shown = re.sub(r"own_id='[^']*'", "", repr(replace(read, ignored=())))
    return f"{shown} {[one.payload for one in read.requests]}"
