"""Answers by schema: the check that they validate."""

from decimal import Decimal

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
