"""Images of a request: their bytes on the wire, what names them, and what is never shown of them."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from support.wire.image_files import BEGINNINGS, png

from millstream.errors import InvalidRequest
from millstream.wire.messages.codec import MAX_MESSAGE_BYTES, encode, pack, unpack
from millstream.wire.messages.images import Image
from millstream.wire.messages.job_messages import ChatMessage, Request, read_request
from millstream.wire.versions import FIRST_VERSION, WIRE_VERSION

PAGE, OTHER = png(0), png(255)


def asked(*parts: dict[str, Any], images: list[Any] | None = None, **fields: Any) -> dict[str, Any]:
    given = [{"data": PAGE}] if images is None else images
    return {"messages": [{"role": "user", "parts": list(parts)}], "images": given} | fields


def test_images_travel_as_their_bytes() -> None:
    request = Request.model_validate(
        asked({"image": 1}, {"text": "and"}, {"image": 0}, images=[{"data": PAGE}, {"data": OTHER}])
    )
    data = encode(request)
    assert unpack(data)["images"] == [{"data": PAGE}, {"data": OTHER}]
    assert read_request(data) == request
    assert (request.lowest_version(), request.messages and request.messages[0].content) == (7, "")
    assert base64.urlsafe_b64encode(PAGE).decode() in request.model_dump_json()
    assert Request.model_validate(request.model_dump()) == request


@pytest.mark.parametrize("data", [PAGE, *BEGINNINGS.values()])
def test_the_formats_are_known_by_their_beginnings(data: bytes) -> None:
    assert Image(data=data).data == data


def test_text_alone_needs_no_new_version_and_keeps_its_digest() -> None:
    request = Request(messages=(ChatMessage(role="user", content="a"),))
    assert request.lowest_version() == FIRST_VERSION < WIRE_VERSION
    assert request.digest() == "4efbf49ff5a5ebe342e26da24b596252"  # as before there were images
    assert b"images" not in encode(request)
    assert b"parts" not in encode(request)


def test_digests_have_the_images_and_their_places() -> None:
    both = [{"data": PAGE}, {"data": OTHER}]
    requests = [
        asked({"image": 0}, {"text": "a"}),
        asked({"text": "a"}, {"image": 0}),
        asked({"image": 0}, {"text": "a"}, images=[{"data": OTHER}]),
        asked({"image": 0}, {"image": 1}, {"text": "a"}, images=both),
        asked({"image": 1}, {"image": 0}, {"text": "a"}, images=both),
    ]
    digests = [Request.model_validate(one).digest() for one in requests]
    assert len(set(digests)) == len(requests)
    turned = asked({"image": 0}, {"image": 1}, {"text": "a"}, images=both[::-1])
    assert Request.model_validate(turned).digest() == digests[4]  # what is shown counts, not its number


HIDDEN = b"\x89PNG\r\n\x1a\nsecret pixels, more than a few of them"
WRONG: list[tuple[dict[str, Any], str, str]] = [
    (asked({"image": 1}), "messages[0].parts[0].image", "names image 1 of a request with 1 image; "),
    (asked({"image": 0}, images=[]), "messages[0].parts[0].image", "of a request with 0 images"),
    (asked({"image": 64}), "messages[0].parts[0].image", "must be below 64 (got 64)"),
    (asked({"image": -1}), "messages[0].parts[0].image", "must be at least 0 (got -1)"),
    (asked({"image": 0}, images=[{"data": PAGE}] * 2), "images[1]", "is in no message; leave it out"),
    (asked({"text": "a"}), "images[0]", "is in no message; leave it out"),
    (asked({"image": 0, "text": "a"}), "messages[0].parts[0].text", "give one of text and image"),
    (asked({}), "messages[0].parts[0].text", "give one of text and image"),
    (asked(images=[]), "messages[0].content", "is missing; add it"),
    (
        {"messages": [{"role": "user", "content": "a", "parts": [{"text": "b"}]}]},
        "messages[0].parts",
        "are given beside content; give one of both (got '1 parts')",
    ),
    (
        {"messages": [{"role": "system", "parts": [{"image": 0}]}], "images": [{"data": PAGE}]},
        "messages[0].parts[0].image",
        "is in a message of role system; only user and tool messages have images",
    ),
    ({"prompt": "a", "images": [{"data": PAGE}]}, "images", "need messages, whose parts name their places"),
    ({"token_ids": [1], "images": [{"data": PAGE}]}, "images", "need messages"),
    (asked({"image": 0}, images=[{"data": HIDDEN}] * 65), "images", "must have at most 64 items"),
    (
        asked({"image": 0}, images=[{"data": HIDDEN[1:]}]),
        "images[0].data",
        "is no whole PNG, JPEG, WebP, GIF, BMP or TIFF image (it begins as none of these); save it again "
        "(got '45 bytes')",
    ),
    (asked({"image": 0}, images=[{"data": b""}]), "images[0].data", "image (it is empty); save it again"),
    (asked({"image": 0}, images=[{"data": "secret pixels"}]), "images[0].data", "must be bytes (got 'str')"),
    (asked({"image": 0}, images=[HIDDEN]), "images[0]", "must be a map (a JSON object) (got 46 bytes)"),
    (asked({"image": 0}, images=[{}]), "images[0].data", "is missing; add it"),
    (asked({"image": 0}, prompt="a", images=[{"data": HIDDEN}]), "messages", "give exactly one of"),
]


@pytest.mark.parametrize(("fields", "field", "problem"), WRONG)
def test_what_is_wrong_is_named_and_not_shown(fields: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_request(pack(fields))
    assert caught.value.field == field
    assert problem in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_message_that_is_too_large_or_cut_is_not_shown() -> None:
    most = asked({"image": 0}, images=[{"data": HIDDEN + bytes(MAX_MESSAGE_BYTES)}])
    for data, problem in ((pack(most), "over the limit of 16777216"), (HIDDEN * 2, "not a msgpack message")):
        with pytest.raises(InvalidRequest, match=problem) as caught:
            read_request(data)
        assert "secret" not in str(caught.value)


def test_printed_requests_hide_images() -> None:
    request = Request.model_validate(asked({"image": 0}, images=[{"data": HIDDEN}]))
    assert "secret" not in f"{request!r} {request} {request.images[0]!r}"
