"""What is said of answers: where they may end, whether they go round in circles, and how sure a median is."""

from __future__ import annotations

from types import SimpleNamespace

from ops.bench.grammars.schemas import record
from ops.bench.schemas import part
from ops.bench.speculation.part import interval, loops


def test_tokens_that_close_a_string_a_list_or_an_object() -> None:
    vocabulary = ['"', '",', '"}', '"]},', "}", "]", "]}", "}},", ","]
    others = ["", '""', '","', ":", '":', "{", '"a', "a,", " }", ",,", '},"']
    numbered = {text: number for number, text in enumerate([*others, *vocabulary])}
    tokenizer = SimpleNamespace(get_vocab=lambda: numbered)
    assert part.closing(tokenizer) == [numbered[text] for text in vocabulary]


def test_each_of_many_schemas_is_another() -> None:
    assert len({record(4, seed).text for seed in range(50)}) == 50


def test_intervals_of_medians() -> None:
    assert interval([5, 1, 2, 3, 4, 0, 6, 7, 8]) == (1, 7)  # by tables: ranks 2 and 8 of 9
    assert interval([2, 1, 3]) == (1, 3)


def test_a_text_loops_from_its_third_turn_on() -> None:
    assert loops([*range(16)] * 3)
    assert not loops([*range(16)] * 2 + [5])
