"""Real processes that prepare images: killed, stopped, bounded, and gone with the worker."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from PIL import Image
from support.models.vision_checkpoints import build
from support.workers.counting_worker import until
from support.workers.image_jobs import png

from millstream_worker.images import nursery_process
from millstream_worker.images import pool as pool_module
from millstream_worker.images.messages import (
    LENGTH,
    MOST_BYTES,
    BadImage,
    ImageData,
    ImageTokens,
    NurseryConfig,
    PackedArray,
    ProcessorFacts,
    packed,
    received,
    unpacked,
)
from millstream_worker.images.nursery_process import (
    NoProcessor,
    NurseryProcess,
    ProcessGone,
    nursery_environment,
)
from millstream_worker.images.pool import ImagePool, PoolLimits


@contextlib.asynccontextmanager
async def opened(folder: Path, timeout_s: float = 20.0) -> AsyncIterator[tuple[ImagePool, list[int]]]:
    """A pool, and a place that counts deaths."""
    deaths: list[int] = []
    pool = ImagePool(PoolLimits(timeout_s, 100_000_000), died=lambda: deaths.append(1), size=2)
    await pool.open(str(folder))
    try:
        yield pool, deaths
    finally:
        processes = family(pool)
        await pool.close()
        await until(lambda: all(map(is_over, processes)))  # a killed child is gone a moment later


def is_over(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def family(pool: ImagePool) -> list[psutil.Process]:
    [pid] = pool.pids
    nursery = psutil.Process(pid)
    return [nursery, *nursery.children()]


def slow_image() -> bytes:
    """It takes a while to prepare."""
    out = io.BytesIO()
    Image.new("RGB", (4000, 3000), "white").save(out, "PNG", compress_level=1)
    return out.getvalue()


async def child_of(pool: ImagePool, but: set[int] | None = None) -> psutil.Process:
    """One that works on an image."""
    found: list[psutil.Process] = []

    def appeared() -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            children = [one for one in family(pool)[1:] if one.pid not in (but or set())]
            found[:] = [one for one in children if one.cpu_times().user > 0.05]
        return bool(found)

    await until(appeared)
    return found[0]


async def test_images_are_prepared_side_by_side_and_bad_ones_told(checkpoint: Path) -> None:
    async with opened(checkpoint) as (pool, deaths):
        made = await asyncio.gather(*(pool.prepare(png(seed)) for seed in range(6)))
        with pytest.raises(BadImage) as raised:
            await pool.prepare(png(1)[:100])
        again = await pool.prepare(png(0))
    assert len({one.arrays[0].data for one in made}) == 6
    assert again == made[0]
    assert raised.value.kind == "damaged"
    assert not deaths


@pytest.mark.slow
async def test_a_killed_child_costs_its_image_one_try(checkpoint: Path) -> None:
    async with opened(checkpoint) as (pool, deaths):
        preparing = asyncio.ensure_future(pool.prepare(slow_image()))
        beside = asyncio.ensure_future(pool.prepare(png(1)))
        (await child_of(pool)).kill()
        assert (await preparing).size > 0
        assert (await beside).size > 0
    assert len(deaths) == 1


@pytest.mark.slow
async def test_an_image_that_kills_twice_is_refused(checkpoint: Path) -> None:
    async with opened(checkpoint) as (pool, deaths):
        preparing = asyncio.ensure_future(pool.prepare(slow_image()))
        killed: set[int] = set()
        for _ in range(2):
            child = await child_of(pool, killed)
            killed.add(child.pid)
            child.send_signal(signal.SIGSEGV)
        with pytest.raises(BadImage, match="the image decoder died on it twice"):
            await preparing
        assert (await pool.prepare(png(1))).size > 0
    assert len(deaths) == 2


@pytest.mark.slow
async def test_an_image_that_hangs_is_refused_in_time(checkpoint: Path) -> None:
    """Its process is stopped, so that no bound of CPU time ends it."""
    async with opened(checkpoint, timeout_s=3.0) as (pool, deaths):
        preparing = asyncio.ensure_future(pool.prepare(slow_image()))
        stopped: set[int] = set()
        begun = time.monotonic()
        for _ in range(2):
            child = await child_of(pool, stopped)
            child.suspend()
            stopped.add(child.pid)
        with pytest.raises(BadImage, match=r"not prepared within 3 s, twice .*IMAGE_TIMEOUT_S"):
            await preparing
        assert time.monotonic() - begun < 60
    assert len(deaths) == 2


@pytest.mark.slow
async def test_the_death_of_the_nursery_costs_no_try(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_PAUSE_S", 0.01)
    async with opened(checkpoint) as (pool, deaths):
        preparing = asyncio.ensure_future(pool.prepare(slow_image()))
        await child_of(pool)
        os.killpg(pool.pids[0], signal.SIGKILL)
        assert (await preparing).size > 0
    assert not deaths


@pytest.mark.slow
async def test_a_stopped_nursery_is_replaced(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nursery_process, "_FORK_S", 0.3)
    async with opened(checkpoint) as (pool, _):
        [before] = pool.pids
        os.kill(before, signal.SIGSTOP)
        assert (await pool.prepare(png(1))).size > 0
        assert pool.pids != [before]


@pytest.mark.slow
async def test_a_cancelled_image_leaves_no_child(checkpoint: Path) -> None:
    async with opened(checkpoint) as (pool, deaths):
        preparing = asyncio.ensure_future(pool.prepare(slow_image()))
        child = await child_of(pool)
        preparing.cancel()
        await asyncio.wait([preparing])
        await until(lambda: is_over(child))
    assert not deaths


@pytest.mark.slow
async def test_children_have_bounds_and_no_secrets(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_REDIS_URL", "redis://:secret@host")
    monkeypatch.setenv("HF_TOKEN", "secret")
    async with opened(checkpoint) as (pool, _):
        preparing = asyncio.ensure_future(pool.prepare(slow_image()))
        child = await child_of(pool)
        environment = str(child.environ())
        await until(lambda: child.rlimit(psutil.RLIMIT_FSIZE) == (0, 0))
        assert child.rlimit(psutil.RLIMIT_CPU) == (21, 21)
        assert child.rlimit(psutil.RLIMIT_NOFILE) == (16, 16)
        assert child.rlimit(psutil.RLIMIT_AS)[0] < 6 * 2**30
        assert not any("torch" in one.path for one in child.memory_maps())
        await preparing
    assert "secret" not in environment
    assert "HF_TOKEN" not in environment


def test_the_environment_is_what_finds_the_modules() -> None:
    given = nursery_environment({"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "x", "MILLSTREAM_REDIS_URL": "y"})
    assert set(given) == {"PATH", "HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM", "OMP_NUM_THREADS"}


class _LivingNursery:
    """Its children prepare an image, or have been taken over by a hostile one and send `reply`; `stays`: and
    then no more, until they are killed.
    """

    is_over = False

    def __init__(self, reply: bytes, *, stays: bool) -> None:
        self._reply, self._stays = reply, stays
        self.killed: list[int] = []

    async def fork(self) -> nursery_process.ForkedChild:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        threading.Thread(target=self._serve, args=(theirs,)).start()
        child = nursery_process.ForkedChild(ours, self)  # type: ignore[arg-type]
        await child.begin()
        return child

    def _serve(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(EOFError, OSError):
            peer.sendall(packed(7))
            _, given = unpacked(received(peer))
            peer.sendall(self._reply if given == b"hostile" else packed(("done", GOOD)))
            if self._stays:
                peer.recv(1)

    def kill(self, pid: int) -> None:
        self.killed.append(pid)


GOOD = ImageData(ImageTokens((5, 6), ((1, 1),)), (PackedArray("pixel_values", "uint8", (2,), b"ab"),))
HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "no msgpack": LENGTH.pack(1) + b"\xc1",
    "two messages in one": LENGTH.pack(2) + b"\x01\x02",
    "half a message": packed(("done", GOOD))[:-1],
    "depth": LENGTH.pack(5000) + b"\x91" * 5000,
    "a text that is none": LENGTH.pack(2) + b"\xa1\xff",
    "a map of lists": LENGTH.pack(3) + b"\x81\x90\x01",
    "a length above the bound": LENGTH.pack(MOST_BYTES + 2**20 + 1) + bytes(10),
    "a number": packed(7),
    "an empty answer": packed(()),
    "no image": packed(("done",)),
    "another image": packed(("done", 7)),
    "tokens that are none": packed(("done", ((("a", 6), ((1, 1),)), ()))),
    "an array of another size": packed(("done", (GOOD.tokens, (("pixel_values", "uint8", (3,), b"ab"),)))),
    "a reason that is none": packed(("bad", "other", "text")),
    "a reason without words": packed(("bad", "damaged")),
    "words that are none": packed(("bad", "damaged", 7)),
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_the_answers_of_a_child_taken_over(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They count as deaths of the decoder: the image is refused, and the next one is prepared."""
    nursery = _LivingNursery(HOSTILE[what], stays=what not in ("nothing", "half a message"))
    monkeypatch.setattr(ImagePool, "_fork", lambda _: nursery.fork())
    deaths: list[int] = []
    pool = ImagePool(PoolLimits(5.0, 10**8), died=lambda: deaths.append(1))
    with pytest.raises(BadImage, match="the image decoder died on it twice") as raised:
        await pool.prepare(b"hostile")
    assert (raised.value.kind, len(deaths)) == ("died", 2)
    assert await pool.prepare(b"good") == GOOD
    assert nursery.killed == [7] * 4  # also the one that was not asked


WORKER = """
import asyncio, sys
from millstream_worker.images.pool import ImagePool, PoolLimits

async def main():
    pool = ImagePool(PoolLimits(20.0, 10**8))
    await pool.open(sys.argv[1])
    task = asyncio.ensure_future(pool.prepare(sys.stdin.buffer.read()))
    await asyncio.sleep(0.2)
    print(pool.pids[0], flush=True)
    await task

asyncio.run(main())
"""


@pytest.mark.slow
def test_all_end_with_a_worker_that_is_killed(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(slow_image())
    with (tmp_path / "image").open("rb") as image:
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(checkpoint)], stdin=image, stdout=subprocess.PIPE
        )
    assert worker.stdout is not None
    nursery = psutil.Process(int(worker.stdout.readline()))
    children: list[psutil.Process] = []

    def has_children() -> bool:
        children[:] = nursery.children()
        return bool(children)

    asyncio.run(until(has_children))
    worker.kill()
    worker.wait()
    worker.stdout.close()
    asyncio.run(until(lambda: all(map(is_over, (nursery, *children)))))


class _StartedNursery:
    is_over = False

    async def end(self) -> None:
        """There is no process."""


@pytest.mark.parametrize(("deaths", "opens"), [(2, True), (3, False)])
async def test_a_nursery_that_dies_in_its_start_is_started_again(
    deaths: int, opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its worker would refuse images as long as it lives."""
    tries: list[NurseryConfig] = []

    async def start(config: NurseryConfig) -> tuple[_StartedNursery, ProcessorFacts]:
        tries.append(config)
        if len(tries) <= deaths:
            raise ProcessGone
        return _StartedNursery(), ProcessorFacts("<image>", 7)

    monkeypatch.setattr(NurseryProcess, "start", start)
    pool = ImagePool(PoolLimits(5.0, 10**8))
    with contextlib.nullcontext() if opens else pytest.raises(NoProcessor, match="loaded: ProcessGone"):
        assert (await pool.open("a")).placeholder_id == 7
    await pool.close()
    assert len(tries) == 3


async def test_a_checkpoint_without_a_processor_has_no_pool(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "idefics3"}')
    pool = ImagePool(PoolLimits(5.0, 10**8))
    with pytest.raises(NoProcessor, match="its image processor cannot be loaded"):
        await pool.open(str(tmp_path))
    assert pool.pids == []


@pytest.mark.slow
async def test_thin_and_tiny_images_are_prepared_or_refused(checkpoint: Path) -> None:
    async with opened(checkpoint) as (pool, deaths):
        for size in ((1, 1), (10_000, 1), (1, 10_000), (3, 1)):
            try:
                features = (await pool.prepare(png(1, *size))).tokens.features
            except BadImage as error:
                features = int(error.kind == "size")
            assert features > 0
    assert not deaths


@pytest.mark.slow
async def test_another_checkpoint_has_another_nursery(checkpoint: Path, tmp_path: Path) -> None:
    other = build("lighton_ocr", tmp_path).folder
    async with opened(checkpoint) as (pool, _):
        [before] = pool.pids
        await pool.open(str(checkpoint))
        assert pool.pids == [before]
        assert (await pool.open(str(other))).placeholder == "<|image_pad|>"
        assert pool.pids != [before]
