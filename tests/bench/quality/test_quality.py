"""What formats cost a model's answers: sums over a text, and needles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from ops.bench.quality import part
from ops.bench.quality.models import cached, without_cache
from ops.bench.quality.needles import A_WINDOW, haystacks
from ops.bench.quality.part import Difference
from ops.bench.quality.text import windows
from torch import Tensor
from transformers import AutoTokenizer


@pytest.fixture
def text(tmp_path: Path) -> str:
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "b.md").write_text("and the quick cat sat on the brown mat. " * 400)
    (folder / "a.txt").write_text("the quick brown fox jumps over the lazy dog. " * 400)
    (folder / "c.py").write_text("no text")
    return str(folder)


def test_differences_are_those_of_their_definition() -> None:
    logits, reference = torch.randn(300, 7), torch.randn(300, 7)
    following = torch.randint(7, (300,))
    difference = Difference()
    difference.add(logits[:200], reference[:200], following[:200])
    difference.add(logits[200:], reference[200:], following[200:])
    got, want = (
        torch.distributions.Categorical(logits=logits),
        torch.distributions.Categorical(logits=reference),
    )
    assert difference.divergence == pytest.approx(
        float(torch.distributions.kl_divergence(want, got).sum()), rel=1e-4
    )
    assert difference.loss == pytest.approx(-float(got.log_prob(following).sum()), rel=1e-4)
    assert difference.same == int((logits.argmax(-1) == reference.argmax(-1)).sum())
    perplexity = math.exp(difference.loss / 300)
    assert f"perplexity {perplexity:8.3f}" in difference.line()
    assert "300 positions" in difference.line()


def test_a_model_over_a_cache_is_the_model_without_one(tiny: Path) -> None:
    window = torch.arange(3, 63)
    want = without_cache(str(tiny), "dequantized")(window, 20)
    assert want.shape[0] == 20
    torch.testing.assert_close(cached(str(tiny), "auto", 64)(window, 20), want, atol=2e-5, rtol=2e-5)
    coded = cached(str(tiny), "int8", 64)
    torch.testing.assert_close(coded(window[:40], 3), coded(window, 23)[:3], atol=2e-5, rtol=2e-5)
    assert 0 < float((coded(window, 20) - want).abs().max()) < 0.5


def test_windows_go_through_the_text_in_the_order_of_files(spelling: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(spelling)
    first, second = windows(tokenizer, [text], 30, 2)
    assert len(first) == len(second) == 31
    assert first[-1] == second[0]
    assert tokenizer.decode(torch.cat((first[:-1], second))).startswith("the quick brown fox")
    with pytest.raises(SystemExit, match="tokens too short"):
        list(windows(tokenizer, [text], 1000, 900))


def test_formats_are_compared_on_text(spelling: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    places = ["--context", "40", "--tokens", "80", "--from", "10"]
    part.main(["--model", str(spelling), "--text", text, *places, "--kv-dtype", "auto", "int8"])
    said = capsys.readouterr().out
    assert "KV auto" in said
    assert "KV int8" in said
    assert said.count("60 positions") == 2


@pytest.mark.parametrize("needles", [3, A_WINDOW + 2])
def test_needles_are_at_the_asked_distance_and_found_by_a_copier(
    needles: int, spelling: Path, text: str
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(spelling)
    texts = windows(tokenizer, [text], 900, 2)
    windows_of_needles = list(haystacks(tokenizer, texts, 700, needles))
    assert sum(len(haystack.answers) for haystack in windows_of_needles) == needles
    for haystack in windows_of_needles:
        tokens = haystack.tokens.tolist()
        for answer in haystack.answers:
            places = list(_places(tokens, tokens[answer.start - 6 : answer.stop]))
            assert len(places) == 3
            assert 700 <= places[2] - places[1] <= 700 + 60 * A_WINDOW
        assert haystack.found(_copied) == len(haystack.answers)
        assert haystack.found(lambda window, count: torch.zeros(count, 1000)) == 0
        begun = haystack.answers[0].start - 60
        forgotten = torch.cat((torch.zeros(begun, dtype=torch.long), haystack.tokens[begun:]))
        assert haystack.found(partial(_copied_of, forgotten)) == 0


def _copied_of(tokens: Tensor, window: Tensor, count: int) -> Tensor:
    return _copied(tokens[: len(window)], count)


def _copied(window: Tensor, count: int) -> Tensor:
    """Logits of what followed the beginning of the same line before."""
    tokens = window.tolist()
    line = tokens[0]  # as a needle's begins
    logits = torch.zeros(count, 1000)
    for row, end in enumerate(range(len(tokens) - count + 1, len(tokens) + 1)):
        begun = end - 1 - tokens[:end][::-1].index(line)
        place = next(_places(tokens[: end - 1], tokens[begun:end]), None)
        if place is not None:
            logits[row, tokens[place + end - begun]] = 1
    return logits


def _places(tokens: list[int], some: list[int]) -> Iterator[int]:
    return (place for place in range(len(tokens)) if tokens[place : place + len(some)] == some)
