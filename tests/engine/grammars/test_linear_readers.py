"""What the engine reads of a format takes time in proportion to its length, by the thread's own CPU time: its
other threads share the interpreter.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from llguidance.gbnf_to_lark import any_to_lark

from millstream_worker.engine.grammars.lark_pieces import lark_of, without_tokens
from millstream_worker.engine.grammars.nested_schemas import with_schemas
from millstream_worker.engine.grammars.schemas.unwritable import problem_of_texts

SHORT, LONG = 16 * 1024, 256 * 1024
MOST_TIMES = 32
TRIES = 3
LARK = {
    "escaped quotes": ('start: "', r"\""),
    "escaped slashes": ("start: /", r"\/"),
    "open attributes": ("start: B\n", "a[\n"),
    "open tokens": ("start: ", "<a"),
    "tokens": ("start: ", "<[1]> "),
    "open ones": ("start: ", "<[1"),
    "schemas": ("start: ", "%json{}\n"),
    "spaces": ("start: %json", " "),
    "words": ("start: ", "%regex "),
    "percents": ("start: ", "%"),
    "comments": ("start: a", "//a\n"),
}
PATTERNS = {
    "classes": ("", "["),
    "ends": ("", "[]]"),
    "ranges": ("[", "a-\\n"),
    "operators": ("[\\n", "--a"),
    "properties": ("", r"\p{"),
    "a property": (r"\p{", "a"),
    "a code": (r"\x{", "1"),
    "an unwritable code": (r"\x{", "0"),
    "codes": ("[", r"\x01"),
    "flags": ("", "(?a-"),
    "a flag": ("(?", "a"),
    "dots": ("", r"\."),
}


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def read_s(read: Callable[[str], object], text: str) -> float:
    began = time.thread_time()
    with suppress(ValueError, RecursionError):
        read(text)
    return time.thread_time() - began


def is_linear(read: Callable[[str], object], before: str, unit: str) -> bool:
    return grows_linearly(read, lambda length: before + unit * ((length - len(before)) // len(unit)))


def grows_linearly(read: Callable[[str], object], make: Callable[[int], str]) -> bool:
    """`make`: a text of about this length."""
    short, long = make(SHORT), make(LONG)
    allowed_s = MOST_TIMES * max(min(read_s(read, short) for _ in range(TRIES)), 1e-4)
    return any(read_s(read, long) <= allowed_s for _ in range(TRIES))


@pytest.mark.parametrize("name", LARK)
def test_a_grammar_of_16_times_the_length_takes_16_times_as_long(name: str) -> None:
    assert is_linear(lambda text: with_schemas(text, lambda schema: schema), *LARK[name])
    assert is_linear(without_tokens, *LARK[name])


@pytest.mark.parametrize(
    ("before", "unit"),
    [("", "\n"), ("", " \n"), ("", "start\n"), ('root ::= "', "a"), ("", "# a\n"), ("start", " ")],
)
def test_so_does_one_whose_syntax_is_not_known(before: str, unit: str) -> None:
    """It stood the engine still for minutes."""
    assert is_linear(lark_of, before, unit)


def chain(length: int) -> str:
    """Of rules, each a terminal as the one behind it is."""
    count = length // 24
    return "\n".join(["root ::= r0", *(f"r{n} ::= r{n + 1}" for n in range(count)), f'r{count} ::= "a"'])


def test_so_do_rules_of_which_each_is_a_terminal_as_the_next_is() -> None:
    assert grows_linearly(lark_of, chain)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ('start: "a"', 'start: "a"'),
        ('\n \n  start \n: "a"', '\n \n  start \n: "a"'),
        ('A: "a"\n%llguidance {}', 'A: "a"\n%llguidance {}'),
        ('root ::= "a"', '%llguidance {}\n\nstart: "a"\n'),
        (
            'b ::= ("b" | root)\nroot ::= b c\nc ::= d e{2}\nd ::= "d" | [a-d]\ne ::= e\nf-G ::= d+',
            '%llguidance {}\n\nb: "b"\n     | start\n\nstart: b c\n\nc: D e{2,2}\n\n'
            'D: "d"\n     | /[a-d]/\n\ne: e\n\nF_G: D+\n',
        ),
    ],
)
def test_a_grammar_in_gbnf_becomes_one_in_lark(text: str, made: str) -> None:
    assert lark_of(text) == made
    assert [line for line in made.split("\n") if line] == [
        line for line in any_to_lark(text).split("\n") if line
    ]


@pytest.mark.parametrize("name", PATTERNS)
def test_so_does_a_pattern(name: str) -> None:
    assert is_linear(lambda text: problem_of_texts({"pattern": text}), *PATTERNS[name])


def test_so_do_constants() -> None:
    assert is_linear(lambda text: problem_of_texts({"const": [text.split()]}), "", "a ")
