"""Reads the body of POST /v1/batches."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millstream.errors import InvalidRequest
from millstream.gateway.auth.api_keys import ApiKey
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.openai.structured_outputs import openai_format

_WINDOW = re.compile(r"([1-9][0-9]{0,5})([mhd])")
_SECONDS = {"m": 60, "h": 3600, "d": 86_400}
LONGEST_WINDOW_S = 30 * 86_400
MOST_METADATA, LONGEST_NAME, LONGEST_VALUE = 16, 64, 512  # OpenAI's
OUTPUT_LASTS_S = (3600, 30 * 86_400)  # OpenAI's


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """The checked body. `output_lasts_s` 0: the batch's files are kept until they are deleted.
    `response_format`: of all lines that say nothing about theirs. `in_order`: lines are sent in the order of
    the file, not those that begin alike together.
    """

    input_file_id: str
    endpoint: ApiEndpoint
    completion_window: str
    window_s: int
    metadata: Mapping[str, str] | None
    output_lasts_s: int
    response_format: Mapping[str, Any] | None
    in_order: bool

    def fields(self, caller: ApiKey) -> dict[str, str]:
        """Returns the first fields of the batch's record."""
        return {
            "endpoint": self.endpoint,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "metadata": json.dumps(self.metadata),
            "queues": json.dumps(caller.queues),
            "output_lasts_s": str(self.output_lasts_s),
            "response_format": json.dumps(self.response_format),
            "in_order": json.dumps(self.in_order),
        }


def read_batch_request(body: Mapping[str, Any]) -> BatchRequest:
    """Raises InvalidRequest naming the field. Null is the same as absent; unknown fields are ignored."""
    given = {name: value for name, value in body.items() if value is not None}
    input_file_id = given.get("input_file_id")
    if not isinstance(input_file_id, str) or not input_file_id:
        raise InvalidRequest("input_file_id", input_file_id, "give the id of an uploaded file")
    try:
        endpoint = ApiEndpoint(str(given.get("endpoint")))
    except ValueError:
        known = " or ".join(ApiEndpoint)
        raise InvalidRequest("endpoint", given.get("endpoint"), f"give {known}") from None
    window = given.get("completion_window")
    openai_format(given.get("response_format", {"type": "text"}))
    in_order = given.get("in_order", False)
    if not isinstance(in_order, bool):
        raise InvalidRequest("in_order", in_order, "give true or false")
    return BatchRequest(
        input_file_id,
        endpoint,
        str(window),
        _window_s(window),
        _metadata(given.get("metadata")),
        _output_lasts_s(given.get("output_expires_after")),
        given.get("response_format"),
        in_order,
    )


def _window_s(window: Any) -> int:
    found = _WINDOW.fullmatch(window) if isinstance(window, str) else None
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
    if not 0 < seconds <= LONGEST_WINDOW_S:
        problem = "give 24h, or another number of m, h or d, up to 30d"
        raise InvalidRequest("completion_window", window, problem)
    return seconds


def _metadata(value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise InvalidRequest("metadata", value, "give an object whose values are strings")
    if len(value) > MOST_METADATA:
        raise InvalidRequest("metadata", value, f"may have {MOST_METADATA} entries")
    for name, text in value.items():
        if len(name) > LONGEST_NAME:
            raise InvalidRequest("metadata", name, f"a name may have {LONGEST_NAME} characters")
        if len(text) > LONGEST_VALUE:
            raise InvalidRequest(f"metadata.{name}", text, f"may have {LONGEST_VALUE} characters")
    return value


def _output_lasts_s(value: Any) -> int:
    if value is None:
        return 0
    if not isinstance(value, dict):
        raise InvalidRequest("output_expires_after", value, 'give {"anchor": "created_at", "seconds": …}')
    if value.get("anchor") != "created_at":
        raise InvalidRequest("output_expires_after.anchor", value.get("anchor"), "must be created_at")
    seconds = value.get("seconds")
    least, most = OUTPUT_LASTS_S
    if type(seconds) is not int or not least <= seconds <= most:
        raise InvalidRequest("output_expires_after.seconds", seconds, f"must be {least} to {most}")
    return seconds
