"""Requests to the HTTP gateway: all of its routes, right, changed and damaged, and bytes that are none."""

from __future__ import annotations

import json
from functools import partial
from random import Random
from typing import Any
from urllib.parse import quote, urlencode

from fuzz.gateway_reply import check_reply
from fuzz.http_exchange import NoRequest
from fuzz.in_process_gateway import (
    ENDED,
    FILE,
    FREE_KEY,
    LIMITED_KEY,
    MOST_BODY,
    NARROW_KEY,
    OPEN,
    in_process_gateway,
)
from fuzz.mutation import damage, mutate
from fuzz.target import Refused, Target
from fuzz.targets.batch import CHAT, COMPLETIONS, openai_body
from fuzz.values import blob, integer, jsonable, subset, text, weighted

Case = tuple[bytes, bool]  # a request as it is sent, and whether its client goes at once
Body = tuple[bytes, bytes]  # its type, and its bytes
_NO_BODY = (b"", b"")
_BOUNDARY = b"b0undary"
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "get", "M-SEARCH", "CONNECT")
_PATHS = (
    "/healthz", "/readyz", "/health", "/version", "/metrics", "/backlog", "/", "", "*", "//", "/v1", "/v1/",
    "/v1/models", "/v1/models/",
    "/v1/models/default", "/v1/models/m", "/v1/models/other/a/b", "/v1/responses", "/v1/embeddings/x",
    "/v1/chat", "/v1/chat/completions/x", "/v2/files", "/v1/files/", "http://127.0.0.1/v1/models",
    "/v1//files", "/v1/files/..", "/v1/files/%2e%2e/content", "/v1/batches/%00", "/v1/models/%ff%fe",
    "/v1/models/%",
)  # fmt: skip
_HEADERS = (
    b"Accept: text/event-stream", b"Accept-Encoding: gzip", b"Accept-Encoding: br;q=1, gzip;q=0", b"X: \xff",
    b"Expect: 100-continue", b"Connection: close", b"Upgrade: websocket", b"Content-Encoding: gzip",
    b"Content-Encoding: br", b"Cookie: a=b", b"Origin: null",
    b"X-Forwarded-For: 1.2.3.4", b"X-Client-Request-Id: \xc3\xa9",
    b"X-Client-Request-Id: a\tb", b"X-Client-Request-Id: mine", b"X-Stainless-Retry-Count: 1",
    b"X-Stainless-Retry-Count: 99999999999999999999", b"Idempotency-Key: k", b"Idempotency-Key:",
    b"Idempotency-Key: \xff\x80", b"Last-Event-ID: 1", b"If-Range: x", b"Range: bytes=0-",
    b"Content-Type: application/x-www-form-urlencoded", b"Content-Type: multipart/form-data",
    b"Content-Type: multipart/form-data; boundary=" + b"x" * 300, b"Authorization: Basic eDp5",
    b"Authorization: Bearer", b"Authorization: Bearer ms-\xff", b"Authorization: Bearer nobody's",
)  # fmt: skip
_FRAMES = (
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Content-Length: 7", b"Content-Length: -1",
    b"Content-Length: 99999999999999999999", b"Content-Length: " + b"9" * 5000, b"Host: evil", b"Host:",
)  # fmt: skip


def _case(chance: Random) -> Case:
    method, path, query, body = weighted(
        chance,
        (4, _generation),
        (3, _upload),
        (2, _batch),
        (1.5, _content),
        (2, _listing),
        (2, _object),
        (1, lambda c: ("GET", c.choice(_PATHS), {}, _NO_BODY)),
    )
    if chance.random() < 0.06:
        method = chance.choice(_METHODS)
    if chance.random() < 0.06:
        path = mutate(chance, path, text)
    if chance.random() < 0.1:
        path = path.removeprefix("/v1")
    whole = _sent(chance, method, _target(path, query), body)
    if chance.random() < 0.08:
        whole = damage(chance, whole)
    return (whole if chance.random() < 0.99 else blob(chance)), chance.random() < 0.03


# --- what is asked

_Draft = tuple[str, str, dict[str, Any], Body]


def _generation(chance: Random) -> _Draft:
    url = chance.choice((CHAT, COMPLETIONS))
    schema = {"name": "a", "schema": {"type": "object"}}
    more = {
        "stream": True, "stream_options": {"include_usage": True}, "n": 2, "seed": 2**63,
        "logit_bias": {"1": 5}, "service_tier": chance.choice(("auto", "flex", "default")),
        "max_tokens": integer(chance),
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": schema},
    }  # fmt: skip
    body = openai_body(chance, url)
    if chance.random() < 0.5:  # its input alone
        body = {name: body[name] for name in ("messages", "prompt") if name in body}
    if chance.random() < 0.3:
        body["stream"] = True
    body["model"] = chance.choice(("default", "default", "default", "m", "m", "other", "none"))
    return "POST", url, {}, _json_body(chance, body | subset(chance, more, 0.1))


def _batch(chance: Random) -> _Draft:
    body = {
        "input_file_id": FILE, "endpoint": chance.choice((CHAT, COMPLETIONS)), "completion_window": "24h",
        "metadata": {"a": "b"}, "output_expires_after": {"anchor": "created_at", "seconds": 3600},
    }  # fmt: skip
    return "POST", "/v1/batches", {}, _json_body(chance, body)


def _upload(chance: Random) -> _Draft:
    """A form: names and values with the parameters and headers of their parts."""
    fields = [
        ("purpose", None, chance.choice(("batch", "user_data", "vision"))),
        ("file", chance.choice(("a.jsonl", 'é".txt', "../../x")), "w1 " * chance.choice((0, 1, 9, 1900))),
        *subset(chance, {n: (n, None, v) for n, v in _EXPIRY.items()}, 0.3).values(),
    ]
    chance.shuffle(fields)
    if chance.random() < 0.5:
        fields = mutate(chance, fields, text)
    form = b"".join(_part(chance, field) for field in fields) + b"--" + _BOUNDARY + b"--\r\n"
    if chance.random() < 0.3:
        form = damage(chance, form)
    return "POST", "/v1/files", {}, (b"multipart/form-data; boundary=" + _BOUNDARY, form)


_EXPIRY = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}


def _part(chance: Random, field: Any) -> bytes:
    """Also of what a mutation has made of a field."""
    name, filename, value = [*field, None, None][:3] if isinstance(field, list | tuple) else (field, None, "")
    head = b'Content-Disposition: form-data; name="%b"' % _bytes(name)
    if filename is not None:
        head += b'; filename="%b"' % _bytes(filename)
    head = damage(chance, head) if chance.random() < 0.05 else head
    return b"--%b\r\n%b\r\n\r\n%b\r\n" % (_BOUNDARY, head, _bytes(value))


def _content(chance: Random) -> _Draft:
    ends = ("", "0", "5", "379", "380", "381", "9" * 19, "9" * 40, "-1", "x", "²")
    several = chance.choice(("", "", "", ",5-6"))
    span = (
        f"{chance.choice(('bytes', 'bytes', 'items'))}={chance.choice(ends)}-{chance.choice(ends)}{several}"
    )
    return "GET", f"/v1/files/{FILE}/content", {}, (b"\r\nRange: " + span.encode(), b"")


def _listing(chance: Random) -> _Draft:
    """Of files, batches, or a batch's rows."""
    path = chance.choice(("/v1/files", "/v1/batches", f"/v1/batches/{ENDED}/results"))
    query = {"after": chance.choice((FILE, OPEN, "1", "2")), "limit": "1", "order": "asc", "purpose": "batch"}
    asked = subset(chance, query, 0.5)
    if asked and chance.random() < 0.5:
        asked = mutate(chance, asked, lambda c: str(jsonable(c)))
    return "GET", path, asked, _NO_BODY


def _object(chance: Random) -> _Draft:
    id = chance.choice((FILE, OPEN, ENDED, f"file-{1:032x}", text(chance)))
    where = f"/v1/files/{id}" if id == FILE or chance.random() < 0.4 else f"/v1/batches/{id}"
    if chance.random() < 0.3:
        return "POST", f"{where}/cancel", {}, _NO_BODY
    return chance.choice(("GET", "DELETE")), where, {}, _NO_BODY


def _json_body(chance: Random, value: Any) -> Body:
    make = partial(_json, value=value)
    data = weighted(
        chance,
        (3, make),
        (6, lambda c: _json(c, mutate(c, value, jsonable))),
        (2, lambda c: damage(c, make(c))),
        (0.5, lambda c: _json(c, jsonable(c, 3))),
        (0.3, blob),
        (0.3, lambda c: _nested(c, make(c))),
        (0.03, lambda c: make(c) + b" " * MOST_BODY),
        (
            0.1,
            lambda c: make(c).decode("utf-8", "replace").encode(c.choice(("utf-16", "utf-32", "utf-8-sig"))),
        ),
    )
    return b"application/json", data


def _json(chance: Random, value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")


def _nested(chance: Random, whole: bytes) -> bytes:
    start, end = chance.choice(((b"[", b"]"), (b'{"a":', b"}")))
    depth = chance.choice((9, 300, 950, 990, 1500, 15_000))
    name = chance.choice((b"metadata", b"messages", b"tools", b"of_a_newer_api", b"response_format"))
    return b'{"%b":%b1%b,%b' % (name, start * depth, end * depth, whole[1:])


# --- how it is sent


def _target(path: str, query: Any) -> bytes:
    """A mutation may have made anything of the query."""
    asked = urlencode(query if isinstance(query, dict) else {"limit": query}, errors="surrogatepass")
    return (quote(path, safe="/%:*", errors="surrogatepass") + (f"?{asked}" if asked else "")).encode()


def _sent(chance: Random, method: str, target: bytes, body: Body) -> bytes:
    kind, data = body
    headers = [] if chance.random() < 0.01 else [b"Host: 127.0.0.1:8000"]
    if chance.random() < 0.98:
        keys = (FREE_KEY, FREE_KEY, FREE_KEY, FREE_KEY, LIMITED_KEY, NARROW_KEY)
        headers.append(b"Authorization: Bearer " + chance.choice(keys).encode())
    if kind:
        headers.append(b"Content-Type: " + kind if not kind.startswith(b"\r\n") else kind[2:])
    headers += chance.sample(_HEADERS, chance.choice((0, 0, 0, 0, 1, 1, 2)))
    headers += chance.sample(_FRAMES, chance.random() < 0.03)
    chunked = bool(data) and chance.random() < 0.2
    if chunked:
        headers.append(b"Transfer-Encoding: chunked")
        data = _chunks(chance, data)
    elif data:
        headers.append(b"Content-Length: %d" % len(data))
    version = chance.choice((b"1.1", b"1.1", b"1.1", b"1.0"))
    head = method.encode() + b" " + target + b" HTTP/" + version + b"\r\n"
    return head + b"".join(header + b"\r\n" for header in headers) + b"\r\n" + data


def _chunks(chance: Random, data: bytes) -> bytes:
    place = chance.randrange(1, len(data) + 1)
    parts = [part for part in (data[:place], data[place:]) if part]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def _bytes(value: Any) -> bytes:
    return str(value).encode("utf-8", "surrogatepass")


# --- what must hold


def _ask(case: Case) -> None:
    data, leaves = case
    try:
        reply = in_process_gateway().ask(data, leaves=leaves)
    except NoRequest as error:
        raise Refused(str(error)) from None
    check_reply(reply)


TARGETS = (Target("gateway", _case, _ask, (Refused,)),)
