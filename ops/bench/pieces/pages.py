"""Images of pages on a model of granite-docling-258M's shape, whose tower takes most of the time.

    python -m ops.bench pages [--parts batch questions chat prepare]

`batch`: seconds a page, by the clock and of CPU, each answered with as many tokens, by this engine and by
transformers' `generate` with one and with eight pages at a time, in turns. `questions`: the seconds of one
page with ten questions, beside those of another page with one. `chat`: the seconds a token of an interactive
row alone, and beside a flood of pages. `prepare`: milliseconds of CPU that a page takes before the engine
sees it.

Pages are drawn, 1,224 x 1,584 pixels; `--edge` is what the image processor makes of the longer one.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import torch
from ops.bench import plots
from ops.bench.command_line import add_engine, parsed, parser_of
from ops.bench.models.vision_checkpoint import vision_checkpoint
from ops.bench.plots import Row
from PIL import Image, ImageDraw

from millstream_worker.engine.assembly import build
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.frames import HoldImage
from millstream_worker.engine.protocol.request import EngineRequest, ImageSpan, SamplingSpec
from millstream_worker.images.processor import ImageProcessor, PreparedImage

PARTS = ("batch", "questions", "chat", "prepare")
GREEDY = SamplingSpec(temperature=0.0)
SIZE = (1224, 1584)
TEMPLATE = "User:<image>{question}\nAssistant:"


def page(number: int) -> Image.Image:
    """A page of drawn words; the same in every run."""
    draw, image = random.Random(number), Image.new("RGB", SIZE, "white")
    canvas = ImageDraw.Draw(image)
    for line in range(60, SIZE[1] - 60, 22):
        words = ("".join(draw.choices("abcdefghij", k=draw.randint(2, 11))) for _ in range(14))
        canvas.text((60, line), " ".join(words), "black")
    return image


class Pages:
    """Prepared pages as requests of an engine, and as transformers takes them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.folder = vision_checkpoint()
        self.image_options = json.dumps({"size": {"longest_edge": options.edge}})
        self.processor = ImageProcessor.load(self.folder, self.image_options)
        self._threads, self._compile = options.threads, options.compile_model

    def engine(self, **changes: Any) -> Engine[Any]:
        config = EngineConfig(
            str(self.folder),
            device="cpu",
            threads=self._threads,
            compile_model=self._compile,
            speculate="off",
            image_options=self.image_options,
        )
        return build(replace(config, **changes), lambda line: None)[0]

    def prepared(self, number: int) -> PreparedImage:
        return self.processor.prepare(page(number))

    def ids(self, image: PreparedImage, question: str) -> tuple[list[int], int]:
        """The prompt's tokens, and where those of the image begin."""
        before, behind = TEMPLATE.format(question=question).encode().split(b"<image>")
        return [*before, *image.tokens.ids, *behind], len(before)

    def hold(self, made: Engine[Any], number: int, image: PreparedImage) -> None:
        made.hold_image(HoldImage("", _digest(number), image.tokens.features, image.packed()))

    def request(
        self, handle: int, number: int, image: PreparedImage, question: str, tokens: int
    ) -> EngineRequest:
        ids, begin = self.ids(image, question)
        runs = tuple((begin + first, count) for first, count in image.tokens.runs)
        spans = (ImageSpan(_digest(number), runs),)
        return EngineRequest(handle, tuple(ids), tokens, GREEDY, images=spans)


def _digest(number: int) -> bytes:
    return sha256(str(number).encode()).digest()


def batch(options: argparse.Namespace) -> Iterator[Row]:
    pages = Pages(options)
    images = [pages.prepared(number) for number in range(options.pages)]
    spent: dict[str, list[Spent]] = {"Millstream": [], "generate, 8 at a time": [], "generate, 1": []}
    made = pages.engine(prefix_cache=False, max_rows=16)
    model = _transformers(pages)
    for turn in range(options.turns):
        spent["Millstream"].append(_millstream(pages, made, images, options.tokens, turn))
        spent["generate, 8 at a time"].append(_generate(pages, model, images, options.tokens, 8))
        alone = images[: max(1, options.pages // 4)]
        spent["generate, 1"].append(_generate(pages, model, alone, options.tokens, 1))
    own = Spent.median(spent["Millstream"])
    for name, turns in spent.items():
        found = Spent.median(turns)
        yield {"what": name, "s a page": found.seconds, "CPU s": found.cpu_s,
               "Millstream is": found.seconds / own.seconds, "by CPU s": found.cpu_s / own.cpu_s}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spent:
    """On a page. CPU seconds say the same beside a busy neighbour, if there is one thread: several wait for
    each other by spinning."""

    seconds: float
    cpu_s: float

    @staticmethod
    def median(turns: list[Spent]) -> Spent:
        return Spent(
            statistics.median(one.seconds for one in turns), statistics.median(one.cpu_s for one in turns)
        )


class Stopwatch:
    def __init__(self, pages: int) -> None:
        self._pages, self._begun = pages, (time.perf_counter(), time.process_time())

    def spent(self) -> Spent:
        seconds, cpu_s = time.perf_counter() - self._begun[0], time.process_time() - self._begun[1]
        return Spent(seconds / self._pages, cpu_s / self._pages)


def _millstream(
    pages: Pages, made: Engine[Any], images: list[PreparedImage], tokens: int, turn: int
) -> Spent:
    numbers = [1000 * turn + number for number in range(len(images))]
    watch = Stopwatch(len(images))
    for number, image in zip(numbers, images, strict=True):
        pages.hold(made, number, image)
        assert made.add(pages.request(number, number, image, "Convert this page.", tokens)) is None
    _run(made)
    return watch.spent()


def _run(made: Engine[Any]) -> None:
    while not made.idle:
        made.step()


def _transformers(pages: Pages) -> Any:
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(pages.folder, dtype="auto").eval()


@torch.inference_mode()
def _generate(pages: Pages, model: Any, images: list[PreparedImage], tokens: int, count: int) -> Spent:
    table = torch.from_numpy(pages.processor.float_table())
    watch = Stopwatch(len(images))
    for first in range(0, len(images), count):
        some = images[first : first + count]
        ids = torch.tensor([pages.ids(image, "Convert this page.")[0] for image in some])
        pixels = torch.from_numpy(_stacked(some)).long()
        floats = table[torch.arange(3).view(3, 1, 1), pixels].to(model.dtype)
        model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=floats, do_sample=False,
            max_new_tokens=tokens, min_new_tokens=tokens,
        )  # fmt: skip
    return watch.spent()


def _stacked(images: list[PreparedImage]) -> Any:
    import numpy as np

    return np.concatenate([image.arrays["pixel_values"] for image in images])


def questions(options: argparse.Namespace) -> Iterator[Row]:
    pages = Pages(options)
    made = pages.engine()
    seconds: dict[int, list[float]] = {1: [], 10: []}
    for turn in range(options.turns):
        for count in seconds:
            number = 100 * turn + count
            image = pages.prepared(number)
            begun = time.perf_counter()
            pages.hold(made, number, image)
            for at in range(count):
                request = pages.request(100 * number + at, number, image, f"Question {at} about it?", 20)
                assert made.add(request) is None
            _run(made)
            seconds[count].append(time.perf_counter() - begun)
    one, ten = map(statistics.median, seconds.values())
    tower = made.scheduler.stats()
    yield {"questions": "one", "seconds": one, "ratio": 1.0}
    yield {"questions": "ten", "seconds": ten, "ratio": ten / one}
    yield {
        "questions": "units encoded a page",
        "seconds": tower.image_units_total / (2 * options.turns),
        "ratio": 0.0,
    }


def chat(options: argparse.Namespace) -> Iterator[Row]:
    """Per output token, by the clock of the steps that it waits for."""
    pages = Pages(options)
    made = pages.engine(prefix_cache=False)
    alone = _token_s(made, 1, options.tokens)
    for number in range(options.pages):
        image = pages.prepared(number)
        pages.hold(made, number, image)
        assert (
            made.add(pages.request(1000 + number, number, image, "Convert this page.", options.tokens))
            is None
        )
    beside = _token_s(made, 2, options.tokens)
    stats = made.scheduler.stats()
    yield {"row": "alone", "ms a token": 1000 * alone, "ratio": 1.0}
    yield {"row": f"beside {options.pages} pages", "ms a token": 1000 * beside, "ratio": beside / alone}
    yield {"row": "units encoded meanwhile", "ms a token": stats.image_units_total, "ratio": 0.0}


def _token_s(made: Engine[Any], handle: int, tokens: int) -> float:
    made.add(EngineRequest(handle, tuple(b"Hello, how are you?"), tokens, GREEDY, priority=0))
    times: list[float] = []
    while len(times) < tokens:
        step = made.step()
        if step is not None and handle in step.handles:
            times.append(time.perf_counter())
    return (times[-1] - times[0]) / (tokens - 1)


def prepare(options: argparse.Namespace) -> Iterator[Row]:
    """Of one thread."""
    pages = Pages(options)
    files = []
    for number in range(options.turns * 4):
        file = io.BytesIO()
        page(number).save(file, "PNG", compress_level=1)
        files.append(file.getvalue())
    opened, prepared, size = [], [], 0
    for data in files:
        begun = time.process_time()
        image = Image.open(io.BytesIO(data)).convert("RGB")
        opened.append(time.process_time() - begun)
        made = pages.processor.prepare(image)
        prepared.append(time.process_time() - begun - opened[-1])
        size = sum(value.nbytes for value in made.arrays.values())
    yield {"what": "decode", "ms": 1000 * statistics.median(opened), "MB": len(files[0]) / 1e6}
    yield {"what": "prepare", "ms": 1000 * statistics.median(prepared), "MB": size / 1e6}


def main() -> None:
    options = _options()
    print("\n".join(plots.caption("pages")), end="\n\n")
    for part, rows in (("batch", batch), ("questions", questions), ("chat", chat), ("prepare", prepare)):
        if part in options.parts:
            print(plots.markdown(list(rows(options))), end="\n\n", flush=True)


def _options() -> argparse.Namespace:
    parser = parser_of("pages", __doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--pages", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=400, help="of an answer")
    parser.add_argument("--edge", type=int, default=2048, help="of the longer side, in pixels")
    parser.add_argument("--turns", type=int, default=1)
    add_engine(parser)
    return parsed(parser)


if __name__ == "__main__":
    main()
