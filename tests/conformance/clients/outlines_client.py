"""outlines: `outlines_client.py URL`, by an interpreter that has it and nothing of Millstream."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from typing import Annotated, Any, Literal

import openai
import outlines
from outlines.types import JsonSchema
from pydantic import BaseModel, Field

Right = Literal["read", "write"]
SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "integer", "minimum": 1, "maximum": 9}, "kind": {"enum": ["wind", 7]}},
    "required": ["number", "kind"],
}
# The model would think until it is cut.
LONG: dict[str, Any] = {
    "max_tokens": 500,
    "extra_body": {"chat_template_kwargs": {"enable_thinking": False}},
}


class Mill(BaseModel):
    kind: Literal["wind", "water"]
    rights: Annotated[list[Right], Field(max_length=3)]


def main(url: str) -> None:
    print(f"outlines {version('outlines')}")
    model = outlines.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key="none"), "default")
    assert isinstance(model("hello", max_tokens=8), str)
    assert "".join(model.stream("hello", max_tokens=8)) is not None
    print("  text and stream passed")
    mill = outlines.Generator(model, Mill)("which mill?", **LONG)
    assert isinstance(Mill.model_validate_json(mill), Mill)
    print("  a model of pydantic passed")
    made = model("which mill?", JsonSchema(SCHEMA), **LONG)
    assert set(json.loads(made)) == {"number", "kind"}
    print("  a schema passed")


if __name__ == "__main__":
    main(sys.argv[1])
