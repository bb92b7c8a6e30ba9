"""pydantic-ai: `pydantic_ai_client.py URL`, by an interpreter that has it and nothing of Millstream."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, RunContext, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

# The model would think, or call, until it is cut.
SHORT = {"chat_template_kwargs": {"enable_thinking": False}}
ONCE = ModelSettings(max_tokens=500, parallel_tool_calls=False, extra_body=SHORT)
Right = Literal["read", "write"]
Short = Annotated[str, Field(max_length=2)]
T = TypeVar("T")
Few = Annotated[set[T], Field(max_length=2)]


class Mill(BaseModel, extra="forbid"):
    kind: Literal["wind", "water"]
    rights: dict[Right, bool]


def main(url: str) -> None:
    print(f"pydantic-ai {version('pydantic-ai-slim')}")
    model = OpenAIChatModel("default", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
    brief = ModelSettings(max_tokens=8, extra_body=SHORT)
    assert isinstance(Agent(model, model_settings=brief).run_sync("hello").output, str)
    print("  text passed")
    for form in (Mill, NativeOutput(Mill), ToolOutput(Mill, strict=True)):
        answer = Agent(model, output_type=form, model_settings=ONCE, retries=0).run_sync("which mill?")
        assert isinstance(answer.output, Mill)
    print("  structured outputs passed")
    called(model)
    print("  tools passed")


def called(model: OpenAIChatModel) -> None:
    """A tool first, then the answer behind its outcome."""
    given: list[object] = []

    def settings(context: RunContext[None]) -> ModelSettings:
        return {**ONCE, "tool_choice": ["final_result"] if given else ["allow"]}

    agent = Agent(model, output_type=Mill, model_settings=settings)

    @agent.tool_plain
    def allow(rights: Few[Right], names: Few[Short], of: dict[Right, bool]) -> str:
        given.append((rights, names, of))
        return "done"

    assert isinstance(agent.run_sync("allow it").output, Mill)
    assert given


if __name__ == "__main__":
    main(sys.argv[1])
