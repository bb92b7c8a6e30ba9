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
            assert (complete is None) is (
                (asked is None and "tools" not in order.fields) or bool(order.fails)
            )
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


def test_calls_are_of_the_tools_that_are_offered(drawn: list[Order]) -> None:
    """Those of a whole answer have whole arguments; all others may be cut in the last one."""
    called = [order for order in drawn if "tools" in order.fields]
    counts = set()
    for order in called:
        offered = {tool["function"]["name"] for tool in order.fields["tools"]}
        for text, complete in zip(order.texts, order.complete, strict=True):
            told = re.findall(r" => (\w+) ", text)
            assert offered.issuperset(told)
            ends = re.findall(r" => \w+ (\{.*?\})(?= => |$)", text)
            assert all(isinstance(json.loads(one), dict) for one in ends[:-1] or (ends if complete else []))
            assert not complete or len(ends) == len(told)
            counts.add((len(told), complete))
    assert {(1, True), (1, False), (0, False)} <= counts
    assert max(counts)[0] > 1


def test_orders_are_of_all_kinds(drawn: list[Order]) -> None:
    asked = [order for order in drawn if "response_format" in order.fields]
    assert any(order.fails for order in asked), "none is refused"
    assert any(False in order.complete for order in asked), "none is cut"
    assert any(order.fields["response_format"] in hostile() for order in asked)
    assert any(len(set(order.texts)) > 1 for order in drawn), "choices are all the same"
    plain = [order for order in drawn if not {"response_format", "tools"} & order.fields.keys()]
    for text in (text for order in plain for text in order.texts):
        words = [int(word[1:]) for word in text.split()]
        assert words == sorted(set(words))
        assert not any(560 <= word < 700 for word in words), "a word that is for poison"
