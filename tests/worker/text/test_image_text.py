"""Prompts with images: what a template is given, where the ids of images go, and which texts are refused."""

from __future__ import annotations

from typing import Any

import pytest
from support.models.vision_checkpoints import TEMPLATE, VisionCheckpoint, build, picture
from support.wire.image_files import png

from millstream.errors import InvalidRequest
from millstream.wire.messages.job_messages import Request
from millstream_worker.images.messages import ImageTokens, Probe, ProcessorFacts
from millstream_worker.images.processor import ImageProcessor
from millstream_worker.text.image_text import ImagesUnreadable, ImageText, image_parts, without_parts
from millstream_worker.text.model import TextModel

LISTS_ONLY = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}IMAGE{% else %}{{ p['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_ROLES = (
    "{% for m in messages %}{% if m['role'] not in ('user', 'assistant') %}{{ raise_exception('no') }}"
    "{% endif %}"
)
TWO_ROLES = TEMPLATE.replace("{% for m in messages %}", _ROLES)
STRINGS_ONLY = "{% for m in messages %}{{ m['role'] + m['content'] }}{% endfor %}"
SIZES = ((60, 90), (200, 40))


@pytest.fixture(scope="module", params=["idefics3", "internvl"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionCheckpoint:
    return build(request.param, tmp_path_factory.mktemp(request.param))


def tokens_of(whole: VisionCheckpoint) -> list[ImageTokens]:
    processor = ImageProcessor.load(whole.folder)
    return [processor.prepare(picture(number, *size)).tokens for number, size in enumerate(SIZES)]


def facts_of(whole: VisionCheckpoint) -> ProcessorFacts:
    return ProcessorFacts(whole.processor.image_token, whole.placeholder)


def asked(*parts: dict[str, Any], **fields: Any) -> Request:
    before = {"role": "system", "content": "be short"}
    messages = [before, {"role": "user", "parts": parts}]
    images = [{"data": png()}] * sum("image" in part for part in parts)
    return Request.model_validate({"messages": messages, "images": images, **fields})


BOTH = ({"text": "left "}, {"image": 0}, {"text": " right "}, {"image": 1}, {"text": " what?"})


@pytest.mark.parametrize("template", [TEMPLATE, LISTS_ONLY])
@pytest.mark.parametrize("spliced", [True, False])
def test_a_prompt_with_images_is_that_of_transformers(
    whole: VisionCheckpoint, template: str, spliced: bool
) -> None:
    placeholder = whole.processor.image_token
    whole.tokenizer.chat_template = template.replace("IMAGE", placeholder)
    text, images = TextModel(whole.tokenizer), tokens_of(whole)
    shown = ImageText(facts_of(whole), text, spliced)
    request = asked(*BOTH)
    ids = text.encode(request)
    shown.check(request, ids, 2)
    prompt, runs = shown.filled(request, ids, images)
    conversation = [
        {"role": "system", "content": [{"type": "text", "text": "be short"}]},
        {"role": "user", "content": [
            {"type": "image"} if "image" in part else {"type": "text", **part} for part in BOTH
        ]},
    ]  # fmt: skip
    conversation[0]["content"] = conversation[0]["content"] if template is LISTS_ONLY else "be short"
    own = whole.inputs(conversation, [picture(number, *size) for number, size in enumerate(SIZES)])
    own_ids = own["input_ids"][0].tolist()
    assert prompt == own_ids
    places = [
        place for of_image in runs for first, count in of_image for place in range(first, first + count)
    ]
    assert places == [place for place, token in enumerate(own_ids) if token == whole.placeholder]
    for image, of_image in zip(images, runs, strict=True):
        assert [count for _, count in of_image] == [count for _, count in image.runs]


def test_an_image_without_its_features_fails_its_own_job(whole: VisionCheckpoint) -> None:
    """As a process that its file has taken over may send it: the tokens are placeholders nowhere."""
    whole.tokenizer.chat_template = TEMPLATE.replace("IMAGE", whole.processor.image_token)
    text, images = TextModel(whole.tokenizer), tokens_of(whole)
    images[0] = ImageTokens((5, 6), ((0, 2),))
    shown, request = ImageText(facts_of(whole), text, spliced=False), asked(*BOTH)
    with pytest.raises(ValueError, match="other features than its tokens have"):
        shown.filled(request, text.encode(request), images)


def probe_of(whole: VisionCheckpoint, text: TextModel) -> tuple[str, Probe]:
    shown = text.template.with_two_images()
    images = [picture(number, *size) for number, size in enumerate(SIZES)]
    ids = ImageProcessor.load(whole.folder).ids(shown, images)
    first, second = tokens_of(whole)
    return shown, Probe(tuple(ids), (first, second))


def test_the_way_is_checked_against_the_processor(whole: VisionCheckpoint) -> None:
    whole.tokenizer.chat_template = TEMPLATE.replace("IMAGE", whole.processor.image_token)
    text = TextModel(whole.tokenizer)
    shown, probe = probe_of(whole, text)
    assert ImageText.checked(facts_of(whole), text, shown, probe).spliced
    other = Probe((*probe.whole[:-1], 0), probe.images)
    with pytest.raises(ImagesUnreadable, match="makes other tokens"):
        ImageText.checked(facts_of(whole), text, shown, other)


def test_a_template_of_strings_shows_no_images(whole: VisionCheckpoint) -> None:
    whole.tokenizer.chat_template = STRINGS_ONLY
    assert TextModel(whole.tokenizer).template.with_two_images() == ""


def refusal(whole: VisionCheckpoint, request: Request, images: int = 2) -> InvalidRequest:
    whole.tokenizer.chat_template = TEMPLATE.replace("IMAGE", whole.processor.image_token)
    text = TextModel(whole.tokenizer)
    with pytest.raises(InvalidRequest) as raised:
        ImageText(facts_of(whole), text).check(request, text.encode(request), images)
    return raised.value


def test_the_placeholder_in_a_text_is_refused_by_its_field(whole: VisionCheckpoint) -> None:
    placeholder = whole.processor.image_token
    written = refusal(whole, asked(*BOTH, {"text": f"a {placeholder}"}))
    assert (written.field, written.problem) == (
        "messages[1].parts[5]", f"contains the model's own image placeholder {placeholder}; remove it"
    )  # fmt: skip
    thought = asked(*BOTH, chat_template_kwargs={"x": placeholder})
    assert thought.messages is not None
    spoken = thought.messages[0].model_copy(update={"role": placeholder})
    hidden = thought.model_copy(update={"messages": (spoken, *thought.messages[1:])})
    assert "shows 3 image placeholders for 2 images" in refusal(whole, hidden).problem


def test_parts_of_texts_alone_are_a_content() -> None:
    request = asked({"text": "one "}, {"text": "two"})
    plain = without_parts(request)
    assert plain.messages is not None
    assert (plain.messages[1].content, plain.messages[1].parts) == ("one two", ())
    assert without_parts(plain) is plain
    assert list(image_parts(request)) == []
    assert list(image_parts(asked(*BOTH))) == [("messages[1].parts[1]", 0), ("messages[1].parts[3]", 1)]


def test_tools_stand_beside_the_parts_of_a_first_message(whole: VisionCheckpoint) -> None:
    """A template that knows neither tools nor outcomes, nor a system's message."""
    whole.tokenizer.chat_template = TWO_ROLES.replace("IMAGE", whole.processor.image_token)
    text = TextModel(whole.tokenizer)
    tools = [{"name": "find"}]
    messages = [
        {"role": "user", "parts": [{"image": 0}, {"text": "read"}]},
        {"role": "tool", "parts": [{"text": "seen: "}, {"image": 1}], "tool_call_id": "x"},
    ]
    request = Request.model_validate({"messages": messages, "images": [{"data": png()}] * 2, "tools": tools})
    shown = text.template.render(request)
    placeholder = whole.processor.image_token
    assert "<tools>" in shown
    assert f"{placeholder}read" in shown
    assert f"<tool_response>\nseen: {placeholder}\n</tool_response>" in shown
