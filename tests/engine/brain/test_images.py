"""When images are encoded, and whose features stand where: by the model that counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine.brain import SIZES, ask
from support.engine.counting import ErringDrafter, Rig
from support.engine.counting_images import holding

from millstream_worker.engine.brain.images.encode_choice import EncodeChoice
from millstream_worker.engine.brain.images.feature_pool import FeaturePool
from millstream_worker.engine.brain.images.held_image import HeldImage, PlacedImage
from millstream_worker.engine.brain.scheduler import Scheduler
from millstream_worker.engine.brain.scheduler_config import SchedulerConfig
from millstream_worker.engine.protocol.request import EngineRequest, ImageSpan

PAGE, OTHER, SMALL = b"page", b"other", b"small"
FEATURES = {PAGE: 12, OTHER: 12, SMALL: 3}
UNITS = {PAGE: 4, OTHER: 4, SMALL: 1}
FEATURE_BYTES = 10


def _rig(**sizes: object) -> Rig:
    fields = SIZES | {"feature_bytes": FEATURE_BYTES, "image_bytes": 10_000, "blocks": 64} | sizes
    return Rig(Scheduler(SchedulerConfig(**fields)))


def _about(handle: int, *parts: int | bytes, max_tokens: int = 4, **fields: object) -> EngineRequest:
    """A prompt of numbers of tokens, and images, whose features stand in runs of at most five."""
    ids: list[int] = []
    spans = []
    for part in parts:
        if isinstance(part, int):
            ids += range(100 * len(ids), 100 * len(ids) + part)
            continue
        left, runs = FEATURES[part], []
        while left:
            some = min(5, left)
            runs.append((len(ids), some))
            ids += [999] * some + ([998] if left > some else [])
            left -= some
        spans.append(ImageSpan(part, tuple(runs)))
    ids = [token % 1000 for token in ids]
    return replace(ask(handle, ids, max_tokens, **fields), images=tuple(spans))


def _hold(rig: Rig, *requests: EngineRequest) -> None:
    held = set()
    for request in requests:
        for image in holding(request, UNITS):
            if (key := (image.salt, image.digest)) not in held:
                held.add(key)
                rig.hold(image)


def _encoded(rig: Rig) -> list[bytes]:
    return [key[1] for key, _ in rig.model.images.encoded]


def test_a_page_is_encoded_once_for_all_its_questions() -> None:
    rig = _rig()
    questions = [_about(handle, PAGE, 3 + handle) for handle in range(1, 6)]
    _hold(rig, *questions)
    rig.run(*questions)
    assert _encoded(rig) == [PAGE] * 4


def test_a_page_is_computed_once_for_all_its_questions() -> None:
    """Also where steps encode one unit each: the others join once all are there."""
    rig = _rig(step_time_target_s=1.0, max_rows=8)
    chat = ask(9, 4, 60, priority=0)
    questions = [_about(handle, 5, PAGE, PAGE, 3 + handle, max_tokens=2) for handle in range(1, 6)]
    _hold(rig, *questions)
    rig.add(chat)
    rig.steps(2)
    rig.add(*questions)
    rig.run()
    alone = len(questions[0].prompt)
    own = sum(3 + handle + SIZES["block_size"] for handle in range(1, 6))
    assert rig.scheduler.stats().prompt_computed_total <= len(chat.prompt) + alone + own
    assert _encoded(rig) == [PAGE] * 4


def test_other_images_share_no_blocks() -> None:
    rig = _rig()
    first, second = _about(1, 2, PAGE, 6), _about(2, 2, OTHER, 6)
    assert first.prompt == second.prompt
    _hold(rig, first, second)
    rig.run(first)
    rig.run(second)
    assert dict(rig.admitted) == {1: 0, 2: 0}


def test_an_image_whose_blocks_are_found_is_not_encoded() -> None:
    rig = _rig()
    first = _about(1, PAGE, 6)
    _hold(rig, first)
    rig.run(first)
    rig.drop("", PAGE)
    before = len(_encoded(rig))
    _hold(rig, first)
    rig.run(replace(first, handle=2))
    assert len(_encoded(rig)) == before
    assert dict(rig.admitted)[2] >= 16


def test_features_are_kept_while_there_is_room() -> None:
    rig = _rig(image_bytes=20 * FEATURE_BYTES, prefix_cache=False)
    for handle, name in enumerate((PAGE, PAGE, OTHER, PAGE), 1):
        request = _about(handle, name, 3)
        _hold(rig, request)
        rig.run(request)
        rig.drop("", name)
    assert _encoded(rig) == [PAGE] * 4 + [OTHER] * 4 + [PAGE] * 4


def test_a_step_encodes_what_its_chunk_needs() -> None:
    rig = _rig(max_step_tokens=6)
    request = _about(1, PAGE, 4)
    _hold(rig, request)
    rig.run(request)
    first = rig.plans[0]
    assert first.token_count <= 6
    assert len(first.encodes) < 4


def test_encoding_gives_way_to_rows_that_somebody_waits_for() -> None:
    """A unit takes ten steps; a row that decodes loses at most as much time to units as it has."""
    rig = _rig(step_time_target_s=1.0, max_rows=4)
    rig = Rig(rig.scheduler, step_s=lambda plan: 1.0 + 10 * len(plan.encodes))
    settle = rig.model.settle
    rig.model.settle = lambda drawn: replace(settle(drawn), encode_s=10.0 * _units(rig))  # type: ignore[method-assign]
    chat = ask(1, 4, 80, priority=0)
    floods = [_about(handle, 1, name, 3, priority=1) for handle, name in ((2, PAGE), (3, OTHER))]
    _hold(rig, *floods)
    rig.add(chat)
    rig.steps(3)
    begun = rig.now
    rig.add(*floods)
    rig.steps(60)
    assert 4 <= len(_encoded(rig)) <= 7
    assert rig.now - begun <= 60 * 2.4


def _units(rig: Rig) -> int:
    return len(rig.plans[len(rig.settled)].encodes)


def test_text_rows_pass_pages_that_wait_to_be_encoded() -> None:
    rig = _rig(step_time_target_s=1.0, max_rows=2)
    chat, page, text = ask(1, 4, 80, priority=0), _about(2, PAGE, 3), ask(3, 5, 2)
    _hold(rig, page)
    rig.add(chat)
    rig.steps(3)
    rig.scheduler.images._owed_s = 1e9  # type: ignore[union-attr]
    rig.add(page, text)
    rig.steps(4)
    assert 3 in rig.finished
    assert not _encoded(rig)


def _owing(rig: Rig) -> FeaturePool:
    """No unit is encoded beside a row that somebody waits for, until `_owed_s` is 0."""
    pool = rig.scheduler.images
    assert pool is not None
    pool._owed_s = 1e9
    return pool


@pytest.mark.parametrize("lacking", ["slots", "blocks"])
def test_no_row_gives_way_to_an_image_that_is_to_wait(lacking: str) -> None:
    """Of a lower lane. Once a step encodes again, one does."""
    sizes = {"max_rows": 2, "blocks": 64} if lacking == "slots" else {"max_rows": 4, "blocks": 16}
    rig = _rig(step_time_target_s=1.0, prefix_cache=False, **sizes)
    chat, low, page = ask(1, 4, 20, priority=0), ask(2, 22, 12, priority=1), _about(3, PAGE, 3, priority=0)
    _hold(rig, page)
    rig.add(chat, low)
    rig.steps(2)
    pool = _owing(rig)
    rig.add(page)
    rig.steps(3)
    assert (rig.scheduler.stats().preemptions_total, _encoded(rig)) == (0, [])
    pool._owed_s = 0.0
    rig.steps(3)
    assert rig.scheduler.stats().preemptions_total == 1
    assert PAGE in _encoded(rig)
    rig.run()


def test_a_prompt_leaves_nothing_to_an_image_that_is_to_wait() -> None:
    """A long prompt of a lower lane takes the whole step, until the image's row may join."""
    rig = _rig(step_time_target_s=1.0, max_step_tokens=16, blocks=100)
    chat, page, long = ask(1, 4, 80, priority=0), _about(2, PAGE, 3, priority=0), ask(3, 150, 2, priority=1)
    _hold(rig, page)
    rig.add(chat)
    rig.steps(3)
    rig.add(long)
    rig.steps(1)
    pool = _owing(rig)
    rig.add(page)
    before = len(rig.plans)
    rig.steps(2)
    whole = [plan.token_count for plan in rig.plans[before:]]
    pool._owed_s = 0.0
    rig.steps(1)
    assert whole == [16, 16]
    assert PAGE in _encoded(rig)
    rig.run()


def test_an_image_behind_blocks_from_the_host_begins() -> None:
    """A row joins as its text is to be computed, and is behind that at once: one unit is granted."""
    rig = _rig(step_time_target_s=1.0, blocks=22, host_blocks=40)
    page = _about(2, 40, PAGE, 3, priority=1)
    _hold(rig, page)
    rig.add(ask(1, 4, 60, priority=0))
    rig.steps(3)
    _owing(rig)
    rig.add(page)
    rig.steps(1)
    rig.add(ask(3, 70, 3, priority=0))
    for _ in range(20):
        assert not _encoded(rig)
        rig.steps(1)
        if rig.scheduler.stats().swapped_in_total:
            break
    assert rig.scheduler.stats().swapped_in_total > 0
    assert _encoded(rig) == [PAGE]
    rig.run()


def test_an_image_that_is_not_held_is_refused() -> None:
    refused = _rig().scheduler.add(_about(1, PAGE, 3), 0.0)
    assert refused is not None
    assert refused.field == "messages"


def test_units_of_a_chunk_are_those_with_features_in_it() -> None:
    placed = PlacedImage(HeldImage(("", b""), 6, 3), ((2, 3), (6, 3)))
    assert list(placed.units(0, 10)) == [(0, 2), (1, 4), (2, 7)]
    assert list(placed.units(3, 7)) == [(0, 3), (1, 4)]
    assert list(placed.units(5, 6)) == []
    assert list(placed.pieces(4, 8)) == [(4, 2, 1), (6, 3, 2)]


def test_a_chunk_ends_before_what_the_step_cannot_encode() -> None:
    placed = (PlacedImage(HeldImage(("", b""), 6, 3), ((2, 3), (6, 3))),)
    assert EncodeChoice(0).fitting(placed, 0, 10) == 2
    assert EncodeChoice(1).fitting(placed, 0, 10) == 4
    assert EncodeChoice(2).fitting(placed, 0, 10) == 7
    assert EncodeChoice(3).fitting(placed, 0, 10) == 10
    assert not EncodeChoice(0).may_begin(placed, 2)
    granted = EncodeChoice(0)
    granted.grant()
    assert granted.may_begin(placed, 2)
    assert (granted.fitting(placed, 0, 10), len(granted.chosen)) == (4, 1)
    assert granted.may_begin(placed, 3)  # of the unit that is encoded
    assert not granted.may_begin(placed, 6)
    assert EncodeChoice(0).may_begin(placed, 5)


def test_the_image_that_was_dropped_first_goes_first() -> None:
    pool = FeaturePool(2 * 4, 1, 0.0)
    for name in (b"a", b"b", b"c"):
        pool.hold(("", name), 4, 1)
        pool.begin_plan(waited_for=False)
        choice = pool.choice()
        choice.fitting(pool.placed("", (ImageSpan(name, ((0, 4),)),)), 0, 4)
        pool.launched(choice)
    assert pool.drop(("", b"a")) == [("", b"a")]
    assert pool.drop(("", b"b")) == []
    pool.hold(("", b"d"), 4, 1)
    assert pool.drop(("", b"c")) == [("", b"b")]
    assert pool.drop(("", b"d")) == [("", b"d")]  # nothing of it was encoded


def test_kept_images_make_room_for_one_that_is_held() -> None:
    pool = _SmallPool(8)
    pool.keep(b"a")
    assert pool.made_room(b"a") == []  # its features are found
    pool.keep(b"b")
    assert pool.made_room(b"c") == [("", b"a")]


class _SmallPool:
    """A pool of so many features, with images of four."""

    def __init__(self, features: int) -> None:
        self.pool = FeaturePool(features, 1, 0.0)

    def made_room(self, name: bytes) -> list[tuple[str, bytes]]:
        return self.pool.make_room(("", name), 4)

    def keep(self, name: bytes) -> None:
        """Hold an image, encode it, and drop it."""
        self.pool.hold(("", name), 4, 1)
        self.pool.begin_plan(waited_for=False)
        choice = self.pool.choice()
        choice.fitting(self.pool.placed("", (ImageSpan(name, ((0, 4),)),)), 0, 4)
        self.pool.launched(choice)
        assert self.pool.drop(("", name)) == []


@st.composite
def arrivals(draw: st.DrawFn) -> list[tuple[int, EngineRequest]]:
    found = []
    for handle in range(draw(st.integers(1, 7))):
        parts = draw(st.lists(st.sampled_from([1, 3, 7, PAGE, OTHER, SMALL]), min_size=1, max_size=4))
        request = _about(
            10 * (handle + 1),
            *parts,
            max_tokens=draw(st.integers(1, 12)),
            choices=draw(st.integers(1, 2)),
            priority=draw(st.integers(0, 1)),
            salt=draw(st.sampled_from(["", "a"])),
            alone=draw(st.sampled_from([False] * 5 + [True])),
        )
        found.append((draw(st.integers(0, 15)), request))
    return found


@settings(max_examples=60)
@given(
    arrivals(),
    st.fixed_dictionaries({
        "max_rows": st.integers(1, 5),
        "max_step_tokens": st.sampled_from([3, 7, 20, 200]),
        "block_size": st.sampled_from([1, 3, 4, 8]),
        "blocks": st.integers(70, 90),
        "prefix_cache": st.booleans(),
        "salted": st.booleans(),
        "pipeline_depth": st.integers(0, 1),
        "step_time_target_s": st.sampled_from([0.0, 0.5, 2.0]),
        "step_time_for_all": st.booleans(),
        "host_blocks": st.sampled_from([0, 8, 40]),
        "speculate": st.sampled_from(["off", "always"]),
        "image_bytes": st.sampled_from([0, 130, 10_000]),
    }),
)  # fmt: skip
def test_rows_with_images_draw_what_they_draw_alone(
    coming: list[tuple[int, EngineRequest]], sizes: dict[str, int]
) -> None:
    config = SchedulerConfig(**SIZES | {"patience_s": 5.0, "feature_bytes": FEATURE_BYTES} | sizes)
    rig = Rig(Scheduler(config, ErringDrafter(every=3)))
    wanted: dict[tuple[str, bytes], set[int]] = {}
    for at in range(40):
        for step, request in coming:
            if step == at:
                for image in holding(request, UNITS):
                    key = rig.scheduler.image_key(image.salt, image.digest)
                    if not wanted.get(key):
                        rig.hold(image)
                    wanted.setdefault(key, set()).add(request.handle)
                rig.add(request)
        rig.step()
        for step, request in coming:
            handles = range(request.handle, request.handle + request.choices)
            if step <= at and all(handle in rig.finished for handle in handles):
                for key, askers in wanted.items():
                    if request.handle in askers:
                        askers.remove(request.handle)
                        if not askers:
                            rig.drop(*key)
    rig.run(most_steps=20_000)


@pytest.mark.parametrize("depth", [0, 1])
def test_displaced_rows_need_no_second_encoding(depth: int) -> None:
    rig = _rig(blocks=16, max_rows=4, prefix_cache=False, pipeline_depth=depth)
    pages = [_about(handle, name, 3, max_tokens=12, priority=1) for handle, name in ((1, PAGE), (2, OTHER))]
    _hold(rig, *pages)
    rig.add(*pages)
    rig.steps(8)
    rig.run(ask(3, 40, 4, priority=0))
    assert rig.scheduler.stats().preemptions_total > 0
    assert sorted(_encoded(rig)) == [OTHER] * 4 + [PAGE] * 4
