"""Answers about images are those of transformers' own generation, however the engine cuts the work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.engine.pages import TOKENS, AnsweredPages, drop, hold, likeliest
from support.engine.whole_engine import answers, engine_on, run
from support.models.vision_types import VISION_TYPES

Answered = Callable[[str], AnsweredPages]
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # glm46v's own
_FAST = ("idefics3", "lighton_ocr", "qwen3_vl")  # tiles, lines of features; several axes with deep features


_STRUCTURES = {
    *_FAST,
    "granite_docling",
    "hunyuan_vl",
    "qwen2_5_vl",
}  # deep features alone; four axes; windows


def _of(kind: str, *more: pytest.MarkDecorator) -> object:
    return pytest.param(
        kind, marks=[pytest.mark.xdist_group(f"images_{kind}"), *more]
    )  # generation is asked once


def _slow(kind: str) -> object:
    return _of(kind, pytest.mark.slow)


kinds = pytest.mark.parametrize("kind", [_of(k) if k in _FAST else _slow(k) for k in VISION_TYPES])
slow_kinds = pytest.mark.parametrize("kind", list(map(_slow, VISION_TYPES)))
# how the engine cuts the work is nothing of a type's, but of its structure
structures = pytest.mark.parametrize(
    "kind", [_slow(k) if k in _STRUCTURES else _of(k, pytest.mark.alone) for k in VISION_TYPES]
)


def _engine(answered: AnsweredPages, **changes: Any) -> Any:
    fields = {"kv_memory": "64MiB", "block_size": 16, "max_rows": 8, "max_step_tokens": 4096} | changes
    told: list[str] = []
    engine = engine_on("cpu", answered.checkpoint.folder, told.append, **fields)
    assert engine.images is not None, told
    return engine


def _holding(answered: AnsweredPages, **changes: Any) -> Any:
    """An engine that holds the images of all pages."""
    engine = _engine(answered, **changes)
    hold(engine, answered.pages)
    return engine


def _check(answered: AnsweredPages, engine: Any, handle: int = 10) -> None:
    requests = [one.request(handle + at, TOKENS) for at, one in enumerate(answered.pages)]
    found = run(engine, requests)
    for request, one, expected in zip(requests, answered.pages, answered.expected, strict=True):
        assert found[request.handle] == expected, one.name


def _checked(answered: AnsweredPages, **changes: Any) -> Any:
    """An engine that has given all answers."""
    engine = _holding(answered, **changes)
    _check(answered, engine)
    return engine


@kinds
def test_answers_are_those_of_generate(kind: str, answered: Answered) -> None:
    known = answered(kind)
    engine = _checked(known)
    encoded = engine.scheduler.images.encoded
    _check(known, engine, 100)  # from the prefix cache
    assert engine.scheduler.images.encoded == encoded


@structures
def test_chunks_cut_images(kind: str, answered: Answered) -> None:
    _checked(answered(kind), max_step_tokens=7, max_rows=2)


@slow_kinds
def test_log_probabilities_are_equal(kind: str, answered: Answered) -> None:
    known = answered(kind)
    engine = _holding(known, max_step_tokens=40)
    logs = known.pages[0].request(0, 1).sampling.__class__(temperature=0.0, top_logprobs=20)
    found = answers(engine, [one.request(at, 1, sampling=logs) for at, one in enumerate(known.pages)])
    for at, one in enumerate(known.pages):
        expected = likeliest(known.checkpoint, one, 20).tolist()
        assert found.logprobs[at][0][1:] == pytest.approx(expected, abs=1e-4), one.name


@structures
def test_a_small_pool_preempts_rows_with_images(kind: str, answered: Answered) -> None:
    known = answered(kind)
    longest = max(len(one.ids) for one in known.pages) + TOKENS
    row = 3 * 2 * 2 * 16 * 4  # layers, keys and values, heads, head_dim, bytes
    room = (longest * 3 // 2 // 16 + 2) * 16 * row
    _checked(known, max_step_tokens=64, kv_memory=str(room))


@structures
def test_resumed_rows_go_on(kind: str, answered: Answered) -> None:
    known = answered(kind)
    engine = _holding(known, max_step_tokens=24)
    for at, (one, expected) in enumerate(zip(known.pages, known.expected, strict=True)):
        request = one.request(at, TOKENS, outputs=(tuple(expected[:5]),))
        assert run(engine, [request])[at] == expected[5:], one.name


@pytest.mark.xdist_group("images_idefics3")
@pytest.mark.parametrize("options", [{"attention": "native"}, {"speculate": "always"}], ids=str)
def test_other_forms_answer_the_same(options: dict[str, str], answered: Answered) -> None:
    _checked(answered("idefics3"), max_step_tokens=50, **options)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("idefics3", marks=pytest.mark.alone), "qwen3_vl"])
def test_compiled_and_replayed_steps_answer_the_same(kind: str, answered: Answered) -> None:
    """Steps without images are replayed, also behind images with positions of several axes."""
    known = answered(kind)
    engine = _holding(known, max_step_tokens=40, attention="native", compile_model="on")
    for handle in (10, 100, 200):
        _check(known, engine, handle)
    assert engine.runner.model is not engine.runner.model.eager


@pytest.mark.slow
def test_quantised_weights_and_keys_read_images(answered: Answered) -> None:
    """Of the text half; its answers are near those of the checkpoint's weights, and the same in any batch."""
    known = answered("idefics3")
    found = []
    for rows in (1, 8):
        engine = _holding(known, max_rows=rows, weights="int8", kv_dtype="int8", dtype="auto")
        found.append(run(engine, [one.request(at, 4) for at, one in enumerate(known.pages)]))
    assert found[0] == found[1]
    firsts = [found[0][at][0] == one[0] for at, one in enumerate(known.expected)]
    assert sum(firsts) >= len(firsts) - 2


@pytest.mark.xdist_group("images_idefics3")
def test_tenants_share_no_images(answered: Answered) -> None:
    known = answered("idefics3")
    engine = _engine(known)
    for salt in ("a", "b"):
        hold(engine, known.pages[1:2], salt)
        run(engine, [known.pages[1].request(ord(salt), 2, salt=salt)])
    [(_, prepared)] = known.pages[1].images
    assert engine.scheduler.images.encoded == 2 * engine.images.tower.units(prepared.arrays)


@pytest.mark.xdist_group("images_idefics3")
def test_answers_depend_on_the_image(answered: Answered) -> None:
    expected = answered("idefics3").expected
    assert expected[1] != expected[2] != expected[3]


@pytest.mark.xdist_group("images_idefics3")
def test_dropped_images_are_found_again(answered: Answered) -> None:
    known = answered("idefics3")
    engine = _engine(known, prefix_cache=False)
    for handle in (10, 100):
        hold(engine, known.pages)
        _check(known, engine, handle)
        drop(engine, known.pages)
    units = sum(engine.images.tower.units(prepared.arrays) for prepared in _different(known))
    assert engine.scheduler.images.encoded == units


def _different(known: AnsweredPages) -> list[Any]:
    return list({span.digest: prepared for one in known.pages for span, prepared in one.images}.values())
