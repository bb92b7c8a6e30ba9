"""Encodes the requests of a list's prompts, each with all that they share. Together they take no more than
one may.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.client.session.options import MAX_PAYLOAD_BYTES
from millstream.client.submit.requests import EncodedRequest, draft
from millstream.errors import InvalidRequest
from millstream.wire.messages.job_messages import Request


def encoded_prompts(requests: Sequence[Request]) -> tuple[EncodedRequest, ...]:
    """Raises InvalidRequest."""
    left, encoded = MAX_PAYLOAD_BYTES, []
    for request in requests:
        made = draft({"request": request}, 0, MAX_PAYLOAD_BYTES)
        left -= len(made.payload)
        if left < 0:
            problem = f"all, each with the other fields, may take {MAX_PAYLOAD_BYTES} bytes; give fewer"
            raise InvalidRequest("prompt", f"{len(requests)} prompts", problem)
        encoded.append(made)
    return tuple(encoded)
