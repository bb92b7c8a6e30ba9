"""Images in the parts of messages: the forms that are taken, from whom, and what is said of all others."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
from support.wire.image_files import BEGINNINGS, data_url, png

from millstream.errors import InvalidRequest
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.openai.messages.chat_messages import asked_messages
from millstream.openai.messages.image_parts import RequestImages, has_images
from millstream.openai.request_body import RequestBody, read_body
from millstream.openai.unsupported_field import UnsupportedField
from millstream.wire.keys import Lane
from millstream.wire.messages.codec import MAX_MESSAGE_BYTES
from millstream.wire.messages.images import MAX_IMAGES, Image, MessagePart
from millstream.wire.messages.job_messages import ChatMessage

PAGE, OTHER = png(0), png(255)
URL = data_url(PAGE)


def body(*parts: Any, role: str = "user", **more: Any) -> RequestBody:
    message = {"role": role, "content": list(parts), **more}
    return read_body(ApiEndpoint.CHAT, {"messages": [message]}, lane=Lane.BATCH, tenant="")


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def image(url: Any = URL) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def read(*parts: Any) -> tuple[ChatMessage, tuple[Image, ...]]:
    """As Python callers send them."""
    images = RequestImages(local=True)
    [message] = asked_messages([{"role": "user", "content": list(parts)}], images)
    return message, images.fields().get("images", ())


def test_parts_are_known_by_the_fields_that_were_sent() -> None:
    """Texts beside each other become one part, and empty ones none."""
    parts = [text(""), text("a"), text("b"), image(), text(""), "c", image()]
    body = {"messages": [{"role": "system", "content": [text("s")]}, {"role": "user", "content": parts}]}
    made = read_body(ApiEndpoint.CHAT, body, lane=Lane.BATCH, tenant="")
    assert made.request.messages is not None
    assert [part.text for part in made.request.messages[1].parts] == ["ab", None, "c", None]
    assert made.sent == {
        f"messages[1].parts[{part}]": f"messages[1].content[{place}]"
        for part, place in enumerate((1, 3, 5, 6))
    }


@pytest.mark.parametrize(
    "part",
    [
        image(),
        image() | {"image_url": {"url": URL, "detail": "high"}},
        {"type": "image_url", "image_url": URL},
        {"type": "input_image", "image_url": URL, "detail": "low"},
        {"type": "image", "image": URL},
        image(URL.replace("data:image/png", "DATA:Image/PNG;name=page.png")),
        image(URL.replace("image/png", "image/jpeg")),  # the file says what it is
    ],
)
def test_the_forms_of_an_image(part: dict[str, Any]) -> None:
    made = body(part, text("Read it.")).request
    assert made.messages == (
        ChatMessage(role="user", content="", parts=(MessagePart(image=0), MessagePart(text="Read it."))),
    )
    assert made.images == (Image(data=PAGE),)
    assert made.lowest_version() == 7


def test_each_different_image_travels_once() -> None:
    again, other = image(), image(data_url(OTHER))
    made = body("a", text("b"), again, other, text(""), "c", again, text("d"), refusal="e").request
    assert made.messages is not None
    shown = [part.text if part.image is None else part.image for part in made.messages[0].parts]
    assert shown == ["ab", 0, 1, "c", 0, "de"]
    assert made.images == (Image(data=PAGE), Image(data=OTHER))


@pytest.mark.parametrize("parts", [(), ("a",), (text("a"), {"type": "refusal", "refusal": "b"})])
def test_texts_alone_stay_a_content(parts: tuple[Any, ...]) -> None:
    made = body(*parts).request
    assert (made.images, made.lowest_version()) == ((), 1)
    assert made.messages is not None
    assert not made.messages[0].parts


def test_tools_answer_with_images() -> None:
    made = body(image(), role="tool", tool_call_id="a").request
    assert made.messages is not None
    assert (made.messages[0].tool_call_id, made.messages[0].parts) == ("a", (MessagePart(image=0),))


def test_what_has_no_effect_is_told() -> None:
    made = body(image() | {"image_url": {"url": URL, "detail": "high"}, "cache_control": {}, "mood": "x"})
    assert made.ignored == (
        "messages.content.cache_control",
        "messages.content.image_url.detail",
        "messages.content.mood",
    )


FIELD = "messages[0].content[0].image_url.url"
LOCAL = "local files are read by `batch run --media DIR` and the Python client only"
WRONG: list[tuple[Any, str, str]] = [
    (image("https://example.com/a.png"), FIELD, "images are not fetched from URLs; send the image itself as"),
    (image("HTTP://example.com/a.png"), FIELD, "images are not fetched from URLs"),
    (image("/etc/passwd"), FIELD, LOCAL),
    (image("file:///etc/passwd"), FIELD, LOCAL),
    ({"type": "image", "image": "page.png"}, "messages[0].content[0].image", LOCAL),
    (image(base64.b64encode(PAGE * 99).decode()), FIELD, "give a data: URL (got '8976 ch"),
    (image(None), FIELD, "give a data: URL"),
    (image(7), FIELD, "give a data: URL"),
    (image(""), FIELD, "give a data: URL"),
    ({"type": "image_url"}, "messages[0].content[0].image_url", "give a data: URL"),
    ({"type": "input_image", "file_id": "file-1"}, "messages[0].content[0].image_url", "give a data: URL"),
    (image(URL[:-1]), FIELD, "is not base64 (Incorrect padding); encode the whole image file"),
    (image(f"{URL}\n"), FIELD, "without line breaks"),
    (image(URL + "é"), FIELD, "is not base64"),
    (image("data:image/png,abc"), FIELD, "must go on with ;base64"),
    (image("data:image/png;base64"), FIELD, "must go on with ;base64"),
    (image(data_url(PAGE, "application/pdf")), FIELD, "'application/pdf'; only text and image parts are su"),
    (image(data_url(b"%PDF-1.7")), FIELD, "is no whole PNG, JPEG, WebP, GIF, BMP or TIFF image (it begins"),
    (image(data_url(b"")), FIELD, "image (it is empty); save it again"),
    ({"type": "video_url"}, "messages[0].content[0].type", "only text and image parts are supported"),
    ({"type": "input_audio"}, "messages[0].content[0].type", "only text and image parts are supported"),
]


@pytest.mark.parametrize(("part", "field", "problem"), WRONG)
def test_what_is_wrong_is_named(part: Any, field: str, problem: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        body(part)
    assert caught.value.field == field
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 300
    assert isinstance(caught.value, UnsupportedField) is (
        "only text and image" in problem or "'app" in problem
    )


def test_roles_without_images() -> None:
    for role in ("system", "developer", "assistant"):
        with pytest.raises(InvalidRequest, match=r"content: has an image; only user and tool messages may"):
            body(text("a"), image(), role=role)


def test_too_many_images() -> None:
    urls = [image(data_url(png(shade))) for shade in range(MAX_IMAGES + 1)]
    made = body(*urls[:MAX_IMAGES], *urls[:MAX_IMAGES])
    assert len(made.request.images) == MAX_IMAGES
    with pytest.raises(InvalidRequest, match=r"content\[64\].*: a request may have 64 images; send fewer"):
        body(*urls)


class Drawing:
    """Saves itself as images of PIL do."""

    def __init__(self, data: bytes = PAGE) -> None:
        self.data = data

    def save(self, file: io.BytesIO, format: str) -> None:
        assert format == "PNG"
        if not self.data:
            raise OSError("cannot write mode CMYK as PNG")
        file.write(self.data)


@pytest.mark.parametrize("given", [PAGE, bytearray(PAGE), memoryview(PAGE), Drawing(), URL])
def test_python_callers_give_images_as_they_have_them(given: Any) -> None:
    message, images = read({"type": "image", "image": given}, text("a"))
    assert message.parts == (MessagePart(image=0), MessagePart(text="a"))
    assert images == (Image(data=PAGE),)


@pytest.mark.parametrize("name", ["a.png", "ä page.png"])
def test_python_callers_name_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(BEGINNINGS["jpeg"])
    for path in (tmp_path / name, str(tmp_path / name)):
        assert read({"type": "image", "image": path})[1] == (Image(data=BEGINNINGS["jpeg"]),)


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"no image")
    with (tmp_path / "long").open("wb") as file:
        file.truncate(MAX_MESSAGE_BYTES + 1)
    cases: list[tuple[Any, str]] = [
        (tmp_path / "none.png", "cannot be read (No such file or directory); give an image file"),
        (tmp_path, "cannot be read (Is a directory); give an image file"),
        ("a\0b", "cannot be read ("),
        (tmp_path / "text", "is no whole PNG, JPEG, WebP"),
        (tmp_path / "long", "has more bytes than fit: a whole message may have 16,777,216; send smaller"),
        ("http://example.com/a.png", "images are not fetched from URLs"),
        (
            Drawing(b""),
            "cannot be saved as PNG (OSError('cannot write mode CMYK as PNG')); convert it to RGB",
        ),
        (7, "give a path, the bytes of an image file, a PIL image or a data: URL (got 'int')"),
        (None, "give a path, the bytes"),
    ]
    for given, problem in cases:
        with pytest.raises(InvalidRequest, match=r"^messages\[0\]\.content\[0\]\.image: ") as caught:
            read({"type": "image", "image": given})
        assert problem in str(caught.value)


def test_a_message_without_its_images_is_refused() -> None:
    message = ChatMessage(role="user", content="", parts=(MessagePart(image=0),))
    with pytest.raises(InvalidRequest, match=r"messages\[0\]\.parts: name images of a whole Request; give"):
        asked_messages([message], RequestImages(local=True))


@pytest.mark.parametrize(
    "fields",
    [None, 5, {}, {"messages": None}, {"messages": "image"}, {"messages": [5, {"content": 7}]},
     {"messages": [{"content": [5, {}, {"type": ["image"]}, {"type": "text"}, None]}]}],
)  # fmt: skip
def test_arguments_without_images(fields: Any) -> None:
    assert not has_images(fields)
    assert has_images({"messages": ({"content": ("a", {"type": "image"})},)})
