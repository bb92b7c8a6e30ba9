"""The way a served model's prompts show images: the chat template writes a placeholder for each, and the ids
that the checkpoint's own processor makes of an image take its place. Both are checked against that processor
when the model is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millstream.errors import InvalidRequest
from millstream.wire.messages.job_messages import ChatMessage, Request
from millstream_worker.images.messages import ImageTokens, Probe, ProcessorFacts
from millstream_worker.text.model import TextModel

Runs = tuple[tuple[int, int], ...]


class ImagesUnreadable(Exception):
    """This model's prompts cannot show images; the message is the reason."""


@dataclass(frozen=True, slots=True)
class ImageText:
    """Made by `checked`. `spliced`: ids take the placeholders' places; else the text is tokenized anew with
    the texts of these ids in it.
    """

    facts: ProcessorFacts
    text: TextModel
    spliced: bool = True

    @classmethod
    def checked(cls, facts: ProcessorFacts, text: TextModel, shown: str, probe: Probe) -> ImageText:
        """`shown`: the template's text of a conversation with two images, which `probe` is about. Raises
        ImagesUnreadable.
        """
        for spliced in (True, False):
            made = cls(facts, text, spliced)
            ids = text.ids_of(shown)
            if made.images_in(ids) == len(probe.images):
                filled, _ = made._filled(shown, ids, probe.images)
                if tuple(filled) == probe.whole:
                    return made
        raise ImagesUnreadable("its image processor makes other tokens of a conversation than its tokenizer")

    def images_in(self, ids: Sequence[int]) -> int:
        """Counts the placeholders in a prompt."""
        return list(ids).count(self.facts.placeholder_id)

    def check(self, request: Request, ids: Sequence[int], asked: int) -> None:
        """Raises InvalidRequest unless the rendered prompt has the request's images and no other
        placeholders.
        """
        placeholder = self.facts.placeholder
        for field, text in _texts(request.messages or ()):
            if placeholder in text:
                problem = f"contains the model's own image placeholder {placeholder}; remove it"
                raise InvalidRequest(field, text, problem)
        if (shown := self.images_in(ids)) != asked:
            problem = (
                f"the model's chat template shows {shown} image placeholders for {asked} images; put images "
                "into the messages of users alone, and remove the placeholder from all texts"
            )
            raise InvalidRequest("messages", asked, problem)

    def filled(
        self, request: Request, ids: Sequence[int], images: Sequence[ImageTokens]
    ) -> tuple[list[int], list[Runs]]:
        """Returns the prompt, and for each image the runs of its features in it. `ids`: of the rendered
        request. Raises ValueError for an image that says other things of its features than its tokens do: of
        it an engine would end.
        """
        text = "" if self.spliced else self.text.rendered(request)
        whole, runs = self._filled(text, ids, images)
        for image, own in zip(images, runs, strict=True):
            if sum(count for _, count in own) != image.features:
                raise ValueError("an image with other features than its tokens have")
        return whole, runs

    def _filled(
        self, text: str, ids: Sequence[int], images: Sequence[ImageTokens]
    ) -> tuple[list[int], list[Runs]]:
        if not self.spliced:
            return self._tokenized(text, images)
        whole: list[int] = []
        runs: list[Runs] = []
        left = iter(images)
        for token in ids:
            if token != self.facts.placeholder_id:
                whole.append(token)
                continue
            image = next(left)
            runs.append(tuple((len(whole) + first, count) for first, count in image.runs))
            whole.extend(image.ids)
        return whole, runs

    def _tokenized(self, text: str, images: Sequence[ImageTokens]) -> tuple[list[int], list[Runs]]:
        """The features of an image are as many placeholders in a row of them as it has."""
        shown = iter([self.text.text_of(image.ids) for image in images])
        whole = self.text.ids_of(re.sub(re.escape(self.facts.placeholder), lambda _: next(shown), text))
        places = [place for place, token in enumerate(whole) if token == self.facts.placeholder_id]
        runs: list[Runs] = []
        for image in images:
            own, places = places[: image.features], places[image.features :]
            runs.append(_runs(own))
        return whole, runs


def without_parts(request: Request) -> Request:
    """Messages whose parts are all texts have these as their content."""
    if not any(message.parts for message in request.messages or ()):
        return request
    return request.model_copy(update={"messages": tuple(map(_joined, request.messages or ()))})


def image_parts(request: Request) -> Iterator[tuple[str, int]]:
    """Yields for each image in the messages the name of its field, and its number among the images."""
    for place, message in enumerate(request.messages or ()):
        for number, part in enumerate(message.parts):
            if part.image is not None:
                yield f"messages[{place}].parts[{number}]", part.image


def _joined(message: ChatMessage) -> ChatMessage:
    if not message.parts or any(part.image is not None for part in message.parts):
        return message
    content = "".join(part.text or "" for part in message.parts)
    return message.model_copy(update={"content": content, "parts": ()})


def _texts(messages: Sequence[ChatMessage]) -> Iterator[tuple[str, str]]:
    for place, message in enumerate(messages):
        yield f"messages[{place}].content", message.content
        for number, part in enumerate(message.parts):
            yield f"messages[{place}].parts[{number}]", part.text or ""


def _runs(places: Sequence[int]) -> Runs:
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and sum(runs[-1]) == place:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((place, 1))
    return tuple(runs)
