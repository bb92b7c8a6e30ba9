"""instructor: `instructor_client.py URL`, by an interpreter that has it and nothing of Millstream."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import version
from typing import Annotated, Any, Literal

import instructor
from instructor import Mode
from openai import OpenAI
from pydantic import BaseModel, Field

Right = Literal["read", "write"]


class Mill(BaseModel, extra="forbid"):  # the model would write keys until it is cut
    """A mill."""

    kind: Literal["wind", "water"]
    rights: dict[Right, bool]


class Flags(BaseModel, extra="forbid"):
    """Flags without an order."""

    flags: Annotated[set[Right], Field(max_length=2)]


ASK: dict[str, Any] = {
    "model": "default", "messages": [{"role": "user", "content": "which mill?"}], "max_tokens": 500,
    "max_retries": 0,
    "extra_body": {"chat_template_kwargs": {"enable_thinking": False}},  # it would think until it is cut
}  # fmt: skip


def main(url: str) -> None:
    print(f"instructor {version('instructor')}")
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    for mode in (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA):
        asked = instructor.from_openai(client, mode=mode)
        mill = asked.chat.completions.create(**ASK, response_model=Mill)
        assert isinstance(mill, Mill)
        print(f"  {mode.name} passed")
    tools = instructor.from_openai(client)
    assert isinstance(tools.chat.completions.create(**ASK, response_model=Flags), Flags)
    print("  a set passed")
    for kind in (list[Mill], Iterable[Mill]):
        mills = tools.chat.completions.create(**ASK, response_model=kind)
        assert all(isinstance(one, Mill) for one in mills)
    print("  lists passed")


if __name__ == "__main__":
    main(sys.argv[1])
