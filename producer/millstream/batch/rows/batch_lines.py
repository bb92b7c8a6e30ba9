"""Parses one line of the input file into a row to submit, or raises a LineFault that says what is wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from millstream.batch.media.media_folder import MediaFolder, MediaPage, StandIns
from millstream.batch.rows.faults import FaultCode, LineFault, fault_of_body, faults_only, invalid
from millstream.client.submit.encoded_prompts import encoded_prompts
from millstream.client.submit.requests import EncodedRequest
from millstream.errors import InvalidRequest
from millstream.json_bytes import strict_json
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.openai.format_fields import ordered_text
from millstream.openai.request_body import DEFAULT_QUEUE, read_body
from millstream.wire.keys import Lane
from millstream.wire.messages.codec import MAX_MESSAGE_BYTES
from millstream.wire.messages.job_messages import Request, ResultCache
from millstream.wire.messages.sampling import SamplingParams

MAX_CUSTOM_ID = 512  # characters
LINE_FIELDS = {"custom_id", "method", "url", "body"}


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A valid line with its requests, one for each prompt, which differ in nothing else. `digest` identifies
    its custom_id and content: the same line is the same job, or the same jobs.
    """

    line: int
    custom_id: str
    endpoint: ApiEndpoint
    queue: str
    digest: str
    requests: Sequence[Request] = ()
    _: KW_ONLY
    encoded: Sequence[EncodedRequest] = ()  # in place of the requests
    sampling: SamplingParams = field(default_factory=SamplingParams)
    metadata: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()  # names of fields without effect
    deprecated: tuple[str, ...] = ()  # names of fields that have newer ones
    answer_key: bytes | None = None  # equal where the answers are; None: sampled, or wanted anew
    size: int = 0  # bytes: about the memory that it takes while it is under way
    prompts: int = 1
    files: Mapping[int, MediaPage] = field(default_factory=dict)  # by the places of the images they become
    place: int = 0  # the byte of the input that it begins at
    beginnings: Sequence[int] = ()  # see `beginnings_of`; only where the order of lines is looked for
    late_bytes: int = 0  # the most that it takes, beyond `size`, while it is sent
    sent_bytes: int = 0  # of its messages that this process does not hold; only while they lie in the queue
    light: BatchLine | None = None  # the same without what can be read again
    named: Mapping[str, str] = field(default_factory=dict)  # fields of its body, as RequestImages has them

    @property
    def expected(self) -> str | None:
        """The answer that the line expects."""
        return self.metadata.get("expected")

    @property
    def sent(self) -> Sequence[Request | EncodedRequest]:
        """The requests, as they are to be submitted."""
        return self.encoded or self.requests


@faults_only
def parse(data: bytes) -> Mapping[str, Any]:
    """The line as a JSON object. Raises LineFault."""
    try:
        value = strict_json(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise LineFault(
            FaultCode.INVALID_ENCODING, f"not UTF-8 (byte {error.start + 1} of the line); convert the file"
        ) from error
    except RecursionError as error:
        raise LineFault(FaultCode.INVALID_JSON, "not JSON: nested too deeply") from error
    except ValueError as error:
        raise LineFault(FaultCode.INVALID_JSON, f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise LineFault(
            FaultCode.NOT_AN_OBJECT, f"expected an object with custom_id, url and body, got {_kind(value)}"
        )
    return value


@faults_only
def custom_id_of(fields: Mapping[str, Any]) -> str:
    """Returns the line's custom_id. Raises LineFault without a valid one."""
    value = fields.get("custom_id")
    if isinstance(value, str) and 1 <= len(value) <= MAX_CUSTOM_ID and _encodable(value):
        return value
    if value is None:
        raise LineFault(
            FaultCode.MISSING_CUSTOM_ID, "custom_id: missing; give each line its own", "custom_id"
        )
    problem = f"give a text of 1 to {MAX_CUSTOM_ID} characters"
    shown = str(InvalidRequest("custom_id", value, problem))
    raise LineFault(FaultCode.INVALID_FIELD, shown, "custom_id")


@faults_only
def read_row(
    line: int,
    custom_id: str,
    fields: Mapping[str, Any],
    *,
    lane: Lane,
    tenant: str,
    queue: str | None = None,
    size: int = 0,
    encoded: bool = False,
    media: MediaFolder | None = None,
) -> BatchLine:
    """Validate the rest of the line. `queue`: for all lines; None: body.model names it. `size`: bytes of the
    line; the requests of several prompts repeat what it has once, which the row's size counts. `encoded`: the
    row has encoded requests. `media`: images may be files below it, for which the requests have stand-ins.
    Raises LineFault naming the field.
    """
    endpoint, content, digest = _content(custom_id, fields, media)
    found = StandIns(media) if media else None
    files = found.take if found else None
    try:
        body = read_body(endpoint, content, lane=lane, tenant=tenant, queue=queue, files=files)
        several = len(body.requests) > 1
        made = encoded_prompts(body.requests) if encoded or several else ()
    except InvalidRequest as error:
        raise fault_of_body(error) from error
    asked = body.request.response_format
    size += 0 if asked is None else len(asked.text)  # the run's may be large
    placed = found.places(body.request.images) if found else {}
    return BatchLine(
        line=line,
        custom_id=custom_id,
        endpoint=endpoint,
        queue=body.queue,
        digest=digest,
        requests=() if encoded else body.requests,
        encoded=made if encoded else (),
        prompts=len(body.requests),
        size=sum(len(one.payload) for one in made) if several else size,
        metadata=body.request.metadata,
        sampling=body.request.sampling,
        ignored=(*unknown_beside_body(fields), *body.ignored),
        deprecated=body.deprecated,
        answer_key=_answer_key(body.queue, endpoint, body.requests),
        files=placed,
        late_bytes=min(MAX_MESSAGE_BYTES, sum(page.most_bytes for page in placed.values())),
        named=body.sent,
    )


def unknown_beside_body(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of a line's own fields that nothing reads."""
    return tuple(name for name in fields if name not in LINE_FIELDS)


def _answer_key(queue: str, endpoint: ApiEndpoint, requests: Sequence[Request]) -> bytes | None:
    """Returns a 16-byte digest of all that an answer depends on and of its prediction, without metadata."""
    request = requests[0]
    if not request.has_one_answer or request.cache is not ResultCache.USE:
        return None
    asked = json.dumps([queue, endpoint, request.prediction, *(one.digest() for one in requests)])
    return hashlib.blake2b(asked.encode(), digest_size=16).digest()


@faults_only
def digest_of(custom_id: str, fields: Mapping[str, Any], media: MediaFolder | None = None) -> str:
    """Returns a row's `digest` without validating the body. Raises LineFault if there can be none."""
    return _content(custom_id, fields, media)[2]


def queue_of(fields: Mapping[str, Any]) -> str:
    """The queue of a line that has a digest, as its body names it."""
    model = fields["body"].get("model")
    return model if isinstance(model, str) and model else DEFAULT_QUEUE


def _content(
    custom_id: str, fields: Mapping[str, Any], media: MediaFolder | None
) -> tuple[ApiEndpoint, dict[str, Any], str]:
    """Returns endpoint, body and digest. Raises LineFault."""
    method = fields.get("method", "POST")
    if method != "POST":
        raise invalid("method", method, 'must be "POST"')
    try:
        endpoint = ApiEndpoint(str(fields.get("url")))
    except ValueError as error:
        known = " or ".join(ApiEndpoint)
        raise LineFault(
            FaultCode.UNKNOWN_URL, str(InvalidRequest("url", fields.get("url"), f"give {known}")), "url"
        ) from error
    content = fields.get("body")
    if not isinstance(content, dict):
        raise invalid("body", content, "give an object")
    canonical = json.dumps([custom_id, endpoint, content], sort_keys=True, ensure_ascii=False)
    canonical += ordered_text(content)
    canonical += media.marks_of(content) if media else ""
    if not _encodable(canonical):
        raise LineFault(
            FaultCode.INVALID_FIELD,
            "body: holds half of a surrogate pair (\\ud800 to \\udfff); remove it",
            "body",
        )
    return endpoint, content, hashlib.sha256(canonical.encode()).hexdigest()[:32]


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
