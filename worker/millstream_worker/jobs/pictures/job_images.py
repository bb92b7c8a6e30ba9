"""What a job knows of its images."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from millstream_worker.engine.protocol.request import ImageSpan


@dataclass(slots=True, eq=False)
class JobImages:
    """`digests` and `fields`: of each image in the messages, in order; one may be there twice. `files`: their
    bytes by digest, until they are prepared. `spans`: their places in the prompt, once it is known.
    """

    digests: tuple[bytes, ...] = ()
    fields: tuple[str, ...] = ()
    files: dict[bytes, bytes] = field(default_factory=dict, repr=False)
    spans: tuple[ImageSpan, ...] = ()

    @property
    def tokens(self) -> int:
        """Counts the tokens of the prompt that stand for features."""
        return sum(count for span in self.spans for _, count in span.runs)

    @property
    def file_bytes(self) -> int:
        return sum(map(len, self.files.values()))

    def take(self, files: Sequence[bytes]) -> None:
        """The files of a message that was fetched again."""
        self.files = {digest_of(data): data for data in files}


def digest_of(data: bytes) -> bytes:
    """Returns the digest of an image file: the same page saved anew is another image."""
    return hashlib.sha256(data).digest()
