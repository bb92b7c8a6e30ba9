"""Jobs with images without a queue, and an engine that notes what it is given."""

from __future__ import annotations

from typing import Any

from millstream.wire.messages.job_messages import Request
from millstream_worker.engine.protocol.frames import DropImage, HoldImage
from millstream_worker.engine.protocol.request import EngineRequest
from millstream_worker.images.messages import ImageData, ImageTokens, PackedArray
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_phase import JobPhase
from millstream_worker.jobs.job_records import JobImages, digest_of
from support.workers.jobs import IdleEngine, held_job


class NotingEngine(IdleEngine):
    """`given`: in order: "hold a", "drop a", "add 1", with the image's name or the prompt's first token."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[str] = []
        self.names: dict[bytes, str] = {}

    def hold(self, image: HoldImage) -> None:
        self.given.append(f"hold {image.salt}{self.names[image.digest]}")

    def drop(self, image: DropImage) -> None:
        self.given.append(f"drop {image.salt}{self.names[image.digest]}")

    def add(self, request: EngineRequest) -> None:
        self.given.append(f"add {request.handle}")


def prepared(size: int = 10) -> ImageData:
    array = PackedArray("pixel_values", "uint8", (size,), bytes(size))
    return ImageData(ImageTokens((5, 6, 6, 7), ((1, 2),)), (array,))


def job_with(name: str, *images: str, engine: NotingEngine | None = None, **fields: Any) -> Job:
    """A job of the tenant that its name begins with, whose images are to be prepared."""
    files = {digest_of(image.encode()): image.encode() for image in images}
    if engine is not None:
        engine.names |= {digest: data.decode() for digest, data in files.items()}
    digests = tuple(digest_of(image.encode()) for image in images)
    places = tuple(f"messages[0].parts[{number}]" for number in range(len(images)))
    request = Request(token_ids=(0,), tenant=name[0])
    own = JobImages(digests, places, files)
    return held_job(name, request=request, phase=JobPhase.PREPARING, **fields | {"images": own})
