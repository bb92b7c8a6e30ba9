"""What reads a format takes time in proportion to its length, whatever it is: by the thread's own CPU time,
which a busy machine does not change."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Literal

import pytest
from pydantic import ValidationError

from millstream.errors import InvalidRequest
from millstream.openai.offered_tools import asked_tools
from millstream.wire.messages.job_messages import Request
from millstream.wire.messages.response_format import MAX_BYTES, ResponseFormat
from millstream.wire.messages.validation_errors import invalid_request

SHORT = 16 * 1024
MOST_TIMES = 32  # for 16 times the length; what reads each part again for each part takes 256
TRIES = 3

Kind = Literal["json_schema", "regex", "choice", "grammar"]
Form = Callable[[int], str]  # of a length, to within one unit


def filled(before: str, unit: str, after: str = "") -> Form:
    return lambda length: before + unit * ((length - len(before) - len(after)) // len(unit)) + after


def listed(before: str, one: str, after: str) -> Form:
    return filled(before, f"{one},", one + after)


FORMS: dict[Kind, dict[str, Form]] = {
    "grammar": {
        "escaped quotes": filled('start: "', r"\""),
        "escaped slashes": filled("start: /", r"\/"),
        "both": filled('start: "', r"\"/"),
        "open attributes": filled("start: B\n", "a[\n"),
        "with a quote": filled("start: B\n", 'a["\n'),
        "with a slash": filled("start: B\n", "a[/\n"),
        "with escaped quotes": filled("start: B\n", 'a["\\"\n'),
        "attributes without an end": filled("start: B\n", 'a["x"y'),
        "ends of attributes": filled("start: a\n", "]:"),
        "a name": filled("start: A\nA: ", "A", "a"),
        "a name of dashes": filled("start: A\nA: ", "A-", "a"),
        "names": filled('start: A\nT: "a"\nA: ', "T "),
        "names without rules": filled("start: a\n", "a \n"),
        "spaces": filled("start", " ", "x"),
        "line feeds": filled("start", "\n", "x"),
        "a priority": filled("start.", "1", "x"),
        "marks before a name": filled("", "?!", "x"),
        "repeats": filled('start: A\nA: "a" ', "~ "),
        "a repeat's digits": filled('start: A\nA: "a" ~', "1"),
        "a repeat's spaces": filled('start: A\nA: "a" ~1', " ", "."),
        "texts": filled("start: ", '"a"'),
        "patterns": filled("start: ", "/a/ "),
        "slashes": filled("start: ", "/"),
        "a terminal's repeat": filled("start: A\nA: {", "1"),
        "a pattern's repeat": filled("start: /{", "1", "/"),
        "no schemas": filled("start: ", "%json "),
        "spaces before a schema": filled("start: %json", " "),
        "schemas": filled("start: ", "%json{}"),
        "an open schema": filled('start: %json{"a":', "["),
        "quotes in comments": filled('start: "a"\n', '# "\n'),
        "rules": filled("start: a\n", "a:\n"),
    },
    "regex": {
        "a repeat": filled("{", "1"), "with spaces": filled("{", "1 "), "spaces": filled("{", " "),
        "braces": filled("", "{1"), "flags": filled("", "(?a"), "a flag": filled("(?", "a"),
        "groups": filled("", "(a)"), "open groups": filled("", "("), "open classes": filled("", "["),
        "ends of classes": filled("", "[]]"), "escapes": filled("", r"\\"),
        "alternatives": filled("", "a|", "b"), "letters": filled("", "a"),
    },
    "json_schema": {
        "a pattern's repeat": filled('{"pattern":"{', "1", '"}'),
        "patterns": listed('{"anyOf":[', '{"pattern":"a"}', "]}"),
        "constants in constants": listed('{"const":' * 60 + "[", '"a"', "]" + "}" * 60),
        "a deep constant": listed('{"const":' + "[" * 60, '"a"', "]" * 60 + "}"),
        "a long path": listed(f'{{"{"a" * 40}":' * 60 + "[", "{}", "]" + "}" * 60),
        "an enum": listed('{"enum":[', '"a"', "]}"),
        "required names": listed('{"properties":{},"required":[', '"a"', "]}"),
        "multiples": listed('{"anyOf":[', '{"multipleOf":1.1}', "]}"),
        "long multiples": listed('{"anyOf":[', f'{{"multipleOf":{"9" * 4000}}}', "]}"),
        "a text": filled('{"const":"', "a", '"}'),
        "a key": listed("{", '"a":1', "}"),
        "open lists": filled("", "["),
    },
    "choice": {"one text": filled('["', "a", '"]'), "texts": listed("[", '"a"', "]")},
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """It would look through all that other tests have left, the more often the longer a text is."""
    gc.disable()
    yield
    gc.enable()


def read_s(kind: Kind, text: str) -> float:
    began = time.thread_time()
    with suppress(ValidationError):  # a refusal must not take longer
        ResponseFormat(type=kind, text=text)
    return time.thread_time() - began


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in FORMS for name in FORMS[kind]])
def test_a_format_of_16_times_the_length_takes_16_times_as_long(kind: Kind, name: str) -> None:
    make = FORMS[kind][name]
    short, long = make(SHORT), make(MAX_BYTES)
    assert MAX_BYTES - 5000 < len(long) <= MAX_BYTES
    allowed_s = MOST_TIMES * max(min(read_s(kind, short) for _ in range(TRIES)), 1e-4)
    assert any(read_s(kind, long) <= allowed_s for _ in range(TRIES))


@pytest.mark.parametrize("kind", FORMS)
def test_a_longer_one_is_refused_by_its_length_alone(kind: Kind) -> None:
    """Not even whether it is JSON is looked at."""
    with pytest.raises(ValidationError) as caught:
        ResponseFormat(type=kind, text="[" * (MAX_BYTES + 1))
    wrong = invalid_request(caught.value)
    told = (wrong.field, wrong.problem)
    assert told == ("text", f"must have at most {MAX_BYTES} characters and has {MAX_BYTES + 1}; shorten it")


def test_too_many_or_too_long_tools_are_refused_unread() -> None:
    """Each may have the length that all may have together."""
    long = {"name": "f", "parameters": "[" * MAX_BYTES}  # no JSON
    for tools, problem in (
        ([long, long], f"have {2 * MAX_BYTES + 2} characters, {MAX_BYTES} at most; shorten them"),
        ([{"name": "f", "parameters": "["}] * 129, "must be 1 to 128 functions; leave tools out for none"),
    ):
        with pytest.raises(ValidationError) as caught:
            Request.model_validate({"messages": [{"role": "user", "content": "x"}], "tools": tools})
        wrong = invalid_request(caught.value)
        assert (wrong.field, wrong.value, wrong.problem) == ("tools", len(tools), problem)


def test_tools_in_a_body_are_read_up_to_their_common_bound() -> None:
    function = {"name": "f", "parameters": {"description": "a" * (MAX_BYTES - 100)}}
    unread = {"name": "g", "parameters": {"multipleOf": 10**400}}
    tools = [{"type": "function", "function": one} for one in (function, function, unread)]
    with pytest.raises(InvalidRequest, match=r"^tools\[1\]: take 5\d+ bytes up to here, and may take 262144"):
        asked_tools({"tools": tools})
    with pytest.raises(InvalidRequest, match=r"^tools: may be 128 functions"):
        asked_tools({"tools": tools * 50})
