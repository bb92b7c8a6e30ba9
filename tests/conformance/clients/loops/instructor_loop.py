"""instructor's partial objects: `instructor_loop.py URL`, by an interpreter that has it."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

import instructor
from instructor import Mode
from instructor.core import IncompleteOutputException
from openai import OpenAI
from pydantic import ValidationError
from tries import OWN, QUESTION, TOKENS, Mill, tried

ASK: dict[str, Any] = {
    "model": "default", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": TOKENS,
    "max_retries": 0, "extra_body": OWN,
}  # fmt: skip


def main(url: str) -> None:
    print(f"instructor {version('instructor')}")
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    for mode in (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA):
        asked = instructor.from_openai(client, mode=mode)
        tried(
            f"{mode.name}, partial",
            lambda calls, asked=asked: partial(asked, calls),
            IncompleteOutputException,
        )
        tried(
            f"{mode.name}, iterable",
            lambda calls, asked=asked: iterable(asked, calls),
            IncompleteOutputException,
            ValidationError,  # of an object in a key beside the list: it takes each for one of the list
        )


def partial(asked: instructor.Instructor, calls: list[object]) -> None:
    """It grows to the whole: no field that was told is taken back."""
    parts = list(asked.chat.completions.create_partial(**ASK, response_model=Mill))
    told = [len(part.model_dump(exclude_none=True)) for part in parts]
    assert told == sorted(told)
    assert told[-1] == len(Mill.model_fields)
    calls.append(Mill.model_validate(parts[-1].model_dump()))


def iterable(asked: instructor.Instructor, calls: list[object]) -> None:
    for one in asked.chat.completions.create_iterable(**ASK, response_model=Mill):
        assert isinstance(one, Mill)
        calls.append(one)


if __name__ == "__main__":
    main(sys.argv[1])
