"""OpenAI's Agents: `openai_agents_loop.py URL`, by an interpreter that has them and nothing of Millstream."""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import version
from typing import Any

from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from tries import OWN, QUESTION, TOKENS, TURNS, Mill, Short, tried

SETTINGS: dict[str, Any] = {"max_tokens": TOKENS, "parallel_tool_calls": False, "extra_body": OWN}


def main(url: str) -> None:
    print(f"openai-agents {version('openai-agents')}")
    set_tracing_disabled(True)  # it would send them to OpenAI
    for what, made in (("output_type and tools", typed), ("a handoff", triage), ("text and tools", plain)):
        for streamed in (False, True):
            tried(
                f"{what}{', streamed' * streamed}",
                lambda calls, made=made, streamed=streamed: asyncio.run(run(url, made, streamed, calls)),
                MaxTurnsExceeded,
                ModelBehaviorError,
            )


async def run(url: str, made: Any, streamed: bool, calls: list[object]) -> None:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        agent = made(OpenAIChatCompletionsModel("default", client), calls)
        if streamed:
            result: Any = Runner.run_streamed(agent, QUESTION, max_turns=TURNS)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, QUESTION, max_turns=TURNS)
    assert isinstance(result.final_output, str if made is plain else Mill)
    if made is triage:
        assert result.last_agent.name == "miller"
        calls.append(result.last_agent)


def typed(model: OpenAIChatCompletionsModel, calls: list[object]) -> Agent:
    @function_tool
    def look_up(word: Short, old: bool) -> str:
        """Looks a mill up."""
        calls.append((word, old))
        return "it is by the water"

    settings = ModelSettings(**SETTINGS)
    return Agent(name="miller", model=model, tools=[look_up], output_type=Mill, model_settings=settings)


def plain(model: OpenAIChatCompletionsModel, calls: list[object]) -> Agent:
    return typed(model, calls).clone(output_type=None)


def triage(model: OpenAIChatCompletionsModel, calls: list[object]) -> Agent:
    """It must hand over to the other."""
    settings = ModelSettings(**SETTINGS, tool_choice="required")
    return Agent(name="triage", model=model, handoffs=[typed(model, calls)], model_settings=settings)


if __name__ == "__main__":
    main(sys.argv[1])
