"""pydantic-ai, an output with tools beside it: `pydantic_ai_loop.py URL`, by an interpreter that has it."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.exceptions import UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import UsageLimits
from tries import OWN, QUESTION, TOKENS, TURNS, Mill, Short, tried

SETTINGS = ModelSettings(max_tokens=TOKENS, parallel_tool_calls=False, extra_body=OWN)
LIMITS = UsageLimits(request_limit=TURNS)


class Anything(BaseModel, extra="allow"):
    """An object: the schema is in the prompt only, and the tiny model cannot read."""


FORMS: Any = (
    (NativeOutput(Mill), Mill), (ToolOutput(Mill), Mill), (PromptedOutput(Anything), Anything), (str, str),
)  # fmt: skip


def main(url: str) -> None:
    print(f"pydantic-ai {version('pydantic-ai-slim')}")
    model = OpenAIChatModel("default", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
    for form, kind in FORMS:
        name = getattr(form, "__name__", type(form).__name__)
        cut = (UnexpectedModelBehavior, UsageLimitExceeded)
        tried(f"{name} with tools", lambda calls, form=form, kind=kind: run(model, form, kind, calls), *cut)
        streamed = lambda calls, form=form, kind=kind: run_streamed(model, form, kind, calls)  # noqa: E731
        tried(f"{name} with tools, streamed", streamed, *cut)


def run(model: OpenAIChatModel, form: Any, kind: type[Any], calls: list[object]) -> None:
    assert isinstance(agent(model, form, calls).run_sync(QUESTION, usage_limits=LIMITS).output, kind)


def run_streamed(model: OpenAIChatModel, form: Any, kind: type[Any], calls: list[object]) -> None:
    result = agent(model, form, calls).run_stream_sync(QUESTION, usage_limits=LIMITS)
    for _ in result.stream_output():
        pass
    assert isinstance(result.get_output(), kind)


def agent(model: OpenAIChatModel, form: Any, calls: list[object]) -> Agent[None, Any]:
    made = Agent(model, output_type=form, model_settings=SETTINGS)

    @made.tool_plain
    def look_up(word: Short, old: bool) -> str:
        """Looks a mill up."""
        calls.append((word, old))
        return "it is by the water"

    return made


if __name__ == "__main__":
    main(sys.argv[1])
