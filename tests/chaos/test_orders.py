"""What orders say that their answers must be, by other means than those which compute it."""

from __future__ import annotations

import json
import random
import re

import pytest

from chaos import orders
from chaos.formats import COMMON, hostile
from chaos.ledger import Order


@pytest.fixture(scope="module")
def drawn() -> list[Order]:
    source = random.Random("orders")
    return [orders.draw(source, f"o{number}") for number in range(800)]


def test_whole_answers_fit_their_formats(drawn: list[Order]) -> None:
    seen = set()
    for order in drawn:
        asked = order.fields.get("response_format")
        for text, complete in zip(order.texts, order.complete, strict=True):
            assert (complete is None) is (asked is None or bool(order.fails))
            if not complete or asked is None or asked in hostile():
                continue
            seen.add(asked.type)
            match asked.type:
                case "choice":
                    assert text in json.loads(asked.text)
                case "regex":
                    assert re.fullmatch(asked.text, text)
                case "grammar":
                    assert re.fullmatch(r"( w\d\d = [a-f]{1,4}\n)+", text)
                case "json_object":
                    assert isinstance(json.loads(text), dict)
                case "json_schema":
                    assert json.loads(text).keys() >= {"colour", "count", "name"}
    assert seen == {asked.type for asked in COMMON} | {"choice"}


def test_orders_are_of_all_kinds(drawn: list[Order]) -> None:
    asked = [order for order in drawn if "response_format" in order.fields]
    assert any(order.fails for order in asked), "none is refused"
    assert any(False in order.complete for order in asked), "none is cut"
    assert any(order.fields["response_format"] in hostile() for order in asked)
    assert any(len(set(order.texts)) > 1 for order in drawn), "choices are all the same"
    plain = [order for order in drawn if order not in asked]
    for text in (text for order in plain for text in order.texts):
        words = [int(word[1:]) for word in text.split()]
        assert words == sorted(set(words))
        assert not any(560 <= word < 700 for word in words), "a word that is for poison"
