"""The table of requests of `make conformance`, at the gateway's door: each is done, or its sender learns that
it is not. And the table itself, which has all that OpenAI's client can send."""

from __future__ import annotations

import inspect
from functools import cache

import pytest
from conformance.clients_page import refused_names
from conformance.exchange import Answer
from conformance.reading import Sign, sign_of
from conformance.request_table import TABLE
from conformance.requests.rows import BOTH, CHAT, COMPLETIONS, Row, rows
from conformance.verdicts import faults
from openai.resources.chat.completions import Completions as Chat
from openai.resources.completions import Completions

OF_CLIENT = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
[TOP_P] = rows(CHAT, BOTH, {"top_p": 0.5}, {"temperature": 1})
[IMAGE] = [row for row in TABLE if row.name == "messages with an image"]
REFUSAL = Answer(400, "messages: this queue's model, m, reads text only", "messages")


@cache
def signs() -> dict[Row, Sign]:
    return {row: sign_of(row) for row in TABLE}


def test_no_request_is_taken_without_a_sign() -> None:
    wrong = [
        f"{row.path} {row.name}: {sign}" for row, sign in signs().items() if sign in (Sign.NONE, Sign.UNNAMED)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_page_names_every_refused_request() -> None:
    refused = {row.name for row, sign in signs().items() if sign in (Sign.REFUSED, Sign.UNNAMED)}
    assert not (missing := refused - refused_names()), "\n".join(sorted(missing))


def test_the_page_names_no_request_that_is_not_there() -> None:
    assert sorted(refused_names() - {row.name for row in TABLE}) == []


@pytest.mark.parametrize(("path", "client"), [(CHAT, Chat), (COMPLETIONS, Completions)])
def test_table_has_every_parameter_of_openai(path: str, client: type[Chat | Completions]) -> None:
    parameters = inspect.signature(client.create).parameters.keys() - OF_CLIENT
    tried = {row.field for row in TABLE if row.path == path and "openai" in row.known}
    assert sorted(parameters - tried - {"model"}) == []


def test_table_has_no_request_twice() -> None:
    assert len({(row.path, row.name) for row in TABLE}) == len(TABLE) > 200


@pytest.mark.parametrize(
    ("row", "ours", "listed", "fault"),
    [
        (TOP_P, Answer(200), set(), None),
        (TOP_P, Answer(200), {"top_p"}, "the page says that it is refused, and it is answered"),
        (TOP_P, Answer(400, "top_p: too small"), {"top_p"}, None),
        (TOP_P, Answer(400, "no"), {"top_p"}, "the error does not name the field: 400 no"),
        (TOP_P, Answer(500, "top_p"), {"top_p"}, "no refusal: 500 top_p"),
        (IMAGE, REFUSAL, {IMAGE.name}, None),
        (IMAGE, REFUSAL, set(), "vLLM answers it, and the page does not name it"),
    ],
)  # fmt: skip
def test_verdict_names_what_is_wrong(row: Row, ours: Answer, listed: set[str], fault: str | None) -> None:
    found = list(faults({row: ours}, {row: Answer(200)}, listed))
    assert len(found) == (fault is not None)
    assert all(one.split(": ", 1)[1].startswith(fault or "") for one in found)
