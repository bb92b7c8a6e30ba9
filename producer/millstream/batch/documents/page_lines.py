"""Makes the lines of a batch from documents: one for each image file, and for each page of a PDF file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millstream.batch.media.pdf_pages import PageProblem, is_pdf, page_count
from millstream.errors import InvalidRequest
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.wire.messages.images import problem_of_image

_HEAD_BYTES = 16  # that tell an image


@dataclass(slots=True)
class PageLines:
    """Mutable. `problems`: why files have no lines, by their names; `pages`: lines so far."""

    files: Sequence[Path]  # each once
    root: Path  # the folder that all are below
    prompt: str
    model: str | None = None
    max_tokens: int | None = None
    problems: dict[str, str] = field(default_factory=dict)
    pages: int = 0

    @classmethod
    def of(
        cls, files: Sequence[Path], prompt: str, model: str | None = None, max_tokens: int | None = None
    ) -> PageLines:
        """Links are followed: the files that they lead to have to be below the folder."""
        found = list(dict.fromkeys(file.resolve() for file in files))
        root = Path(os.path.commonpath([file.parent for file in found]))
        return cls(found, root, prompt, model, max_tokens)

    def lines(self) -> Iterator[dict[str, Any]]:
        """Raises MissingExtra if there is a PDF file that cannot be read without."""
        counts = Counter(file.name for file in self.files)
        for file in self.files:
            path = file.relative_to(self.root).as_posix()
            try:
                pages = _pages_of(file, path)
            except (OSError, PageProblem) as error:
                self.problems[path] = str(getattr(error, "strerror", None) or error)
                continue
            custom_id = file.name if counts[file.name] == 1 else path
            for page in pages:
                self.pages += 1
                yield self._line(f"{custom_id}{page}", f"{path}{page}")

    def _line(self, custom_id: str, path: str) -> dict[str, Any]:
        image = {"type": "image_url", "image_url": {"url": path}}
        content = [image, {"type": "text", "text": self.prompt}]
        body: dict[str, Any] = {} if self.model is None else {"model": self.model}
        body["messages"] = [{"role": "user", "content": content}]
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        return {"custom_id": custom_id, "method": "POST", "url": ApiEndpoint.CHAT.value, "body": body}


def prompt_of(given: str) -> str:
    """The prompt, or that of `@FILE`. Raises InvalidRequest."""
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text("utf-8")
    except (OSError, ValueError) as error:
        problem = f"cannot be read: {getattr(error, 'strerror', None) or 'it is no UTF-8 text'}"
        raise InvalidRequest("--prompt", given, problem) from error


def _pages_of(file: Path, path: str) -> list[str]:
    """The texts that name each page behind the file's name. Raises OSError, PageProblem, MissingExtra."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise PageProblem("has a name that is no UTF-8 text; rename it") from None
    if is_pdf(file.name):
        return [f"#page={page}" for page in range(1, page_count(file) + 1)]
    with file.open("rb") as head:
        if problem := problem_of_image(head.read(_HEAD_BYTES)):
            raise PageProblem(problem)
    return [""]
