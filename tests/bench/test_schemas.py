"""Answers by schema: the check that they validate."""

from decimal import Decimal
from types import SimpleNamespace

import pytest
from ops.bench.schemas import part


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0.07", Decimal("0.07")),
        ("1e400", Decimal("1e400")),
        ("-1e1000000000000000000", Decimal("-Infinity")),
        ("0.1e-10000000000000000000", Decimal(0)),
    ],
)
def test_a_number_is_read_whatever_its_exponent(text: str, number: Decimal) -> None:
    assert part._exact(text) == number


def test_tokens_that_close_a_string_a_list_or_an_object() -> None:
    vocabulary = ['"', '",', '"}', '"]},', "}", "]", "]}", "}},", ","]
    others = ["", '""', '","', ":", '":', "{", '"a', "a,", " }", ",,", '},"']
    numbered = {text: number for number, text in enumerate([*others, *vocabulary])}
    tokenizer = SimpleNamespace(get_vocab=lambda: numbered)
    assert part.closing(tokenizer) == [numbered[text] for text in vocabulary]
