"""What formats cost a model's answers: sums over a text, and needles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from ops.bench.quality.needles import A_WINDOW, haystacks
from ops.bench.quality.part import Difference
from ops.bench.quality.text import windows
from torch import Tensor
from torch.distributions import Categorical, kl_divergence
from torch.nn.functional import one_hot
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
    got, want = (Categorical(logits=given) for given in (logits, reference))
    assert difference.divergence == pytest.approx(float(kl_divergence(want, got).sum()), rel=1e-4)
    assert difference.loss == pytest.approx(-float(got.log_prob(following).sum()), rel=1e-4)
    assert difference.same == int((logits.argmax(-1) == reference.argmax(-1)).sum())
    perplexity = math.exp(difference.loss / 300)
    assert f"perplexity {perplexity:8.3f}" in difference.line()
    assert "300 positions" in difference.line()


def test_windows_go_through_the_text_in_the_order_of_files(spelling: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(spelling)
    first, second = windows(tokenizer, [text], 30, 2)
    assert len(first) == len(second) == 31
    assert first[-1] == second[0]
    assert tokenizer.decode(torch.cat((first[:-1], second))).startswith("the quick brown fox")
    with pytest.raises(SystemExit, match="tokens too short"):
        list(windows(tokenizer, [text], 1000, 900))


@pytest.mark.parametrize("needles", [3, A_WINDOW + 2])
def test_needles_are_at_the_asked_distance(needles: int, spelling: Path, text: str) -> None:
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
        text_goes_on = partial(_next, haystack.tokens)
        assert haystack.found(text_goes_on) == len(haystack.answers)
        assert haystack.found(lambda window, count: torch.zeros(count, 1000)) == 0


def _next(tokens: Tensor, window: Tensor, count: int) -> Tensor:
    """Logits of a model that knows what comes."""
    return one_hot(tokens[len(window) - count + 1 : len(window) + 1], 1000)


def _places(tokens: list[int], some: list[int]) -> Iterator[int]:
    return (place for place in range(len(tokens)) if tokens[place : place + len(some)] == some)
