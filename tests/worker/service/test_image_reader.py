"""The images of a model are opened once, whatever becomes of its engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.engine.ready import INFO

from millstream_worker.images.messages import BadImage, ImageTokens, Probe, ProcessorFacts
from millstream_worker.images.nursery_process import NoProcessor
from millstream_worker.service.image_reader import ImageReader, processes_beside
from millstream_worker.text.image_text import ImagesUnreadable

PLACEHOLDER, IMAGE = 9, ImageTokens((7, 8), ((0, 2),))


class _Pool:
    """Notes what it is asked for; `problem` is raised."""

    size = 0

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.problem: Exception | None = None

    async def open(self, folder: str) -> ProcessorFacts:
        self.asked.append(folder)
        if isinstance(self.problem, NoProcessor):
            raise self.problem
        return ProcessorFacts("<i>", PLACEHOLDER)

    async def probe(self, shown: str) -> Probe:
        self.asked.append("probe")
        if self.problem is not None:
            raise self.problem
        return Probe((7, 8, 1, 7, 8), (IMAGE, IMAGE))


class _Template:
    shown = "<i>a<i>"

    def with_two_images(self) -> str:
        return self.shown


class _Text:
    def __init__(self) -> None:
        self.template = _Template()

    def ids_of(self, text: str) -> list[int]:
        return [PLACEHOLDER if one == "i" else 1 for one in text.replace("<", "").replace(">", "")]


def _reader() -> tuple[ImageReader, Any, Any]:
    pool: Any = _Pool()
    text: Any = _Text()
    return ImageReader(pool, processes=3), pool, text


def _of(folder: str) -> Any:
    return replace(INFO, tokenizer=folder)


async def test_a_new_engine_costs_no_images() -> None:
    """Even where the processes that prepare them could not be started again just then."""
    reader, pool, text = _reader()
    first = await reader.read(text, _of("a"))
    assert (pool.asked, pool.size, first.facts.placeholder_id) == (["a", "probe"], 3, PLACEHOLDER)
    pool.problem = NoProcessor("no memory")
    assert await reader.read(text, _of("a")) is first
    assert pool.asked == ["a", "probe"]


async def test_another_checkpoint_is_read_anew() -> None:
    """And the one before it again, whose processes have gone, even where that one could not be read."""
    reader, pool, text = _reader()
    first = await reader.read(text, _of("a"))
    assert await reader.read(text, _of("b")) is not first
    pool.problem = BadImage("died", "died on it")
    with pytest.raises(ImagesUnreadable, match="died on it"):
        await reader.read(text, _of("c"))
    pool.problem = None
    await reader.read(text, _of("b"))
    assert pool.asked == [one for folder in "abcb" for one in (folder, "probe")]


async def test_what_could_not_be_read_is_tried_again() -> None:
    reader, pool, text = _reader()
    pool.problem = NoProcessor("no processor")
    with pytest.raises(ImagesUnreadable, match="no processor"):
        await reader.read(text, _of("a"))
    pool.problem, text.template.shown = None, "<i>a"
    with pytest.raises(ImagesUnreadable, match="its chat template shows no images"):
        await reader.read(text, _of("a"))
    text.template.shown = _Template.shown
    assert (await reader.read(text, _of("a"))).spliced


@pytest.mark.parametrize(
    ("device", "cores", "most"),
    [("cpu", 2, 1), ("cpu:avx2", 16, 4), ("cuda:0", 2, 1), ("cuda:0", 6, 4), ("cuda:0", 64, 8)],
)
def test_a_device_leaves_cores_for_images(device: str, cores: int, most: int) -> None:
    assert processes_beside(device, cores) == most
