"""LangChain's agents: `langchain_loop.py URL`, by an interpreter that has them and nothing of Millstream."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, StructuredOutputError, ToolStrategy
from langchain.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from openai import LengthFinishReasonError
from pydantic import BaseModel
from tries import OWN, QUESTION, TOKENS, TURNS, Mill, Short, tried

ASKED = {"messages": [{"role": "user", "content": QUESTION}]}
LIMIT: Any = {"recursion_limit": 2 * TURNS}  # a turn is a step of the model and one of the tools
CUT = (GraphRecursionError, StructuredOutputError, LengthFinishReasonError)


class Words(BaseModel, extra="forbid"):
    word: Short
    old: bool


def main(url: str) -> None:
    print(f"langchain {version('langchain')}, langchain-openai {version('langchain-openai')}")
    own = {"max_tokens": TOKENS, "extra_body": OWN, "model_kwargs": {"parallel_tool_calls": False}}
    model = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model="default", max_retries=0, **own)
    for form in (None, ProviderStrategy(Mill), ToolStrategy(Mill)):
        name = type(form).__name__ if form else "text"
        tried(f"create_agent, {name} and tools", lambda calls, form=form: run(model, form, calls), *CUT)
        streamed = lambda calls, form=form: run_streamed(model, form, calls)  # noqa: E731
        tried(f"create_agent, {name} and tools, streamed", streamed, *CUT)


def run(model: ChatOpenAI, form: Any, calls: list[object]) -> None:
    check(agent(model, form, calls).invoke(ASKED, LIMIT), form)


def run_streamed(model: ChatOpenAI, form: Any, calls: list[object]) -> None:
    """Tokens as they come, and the state behind each step."""
    state: Any = None
    for kind, one in agent(model, form, calls).stream(ASKED, LIMIT, stream_mode=["messages", "values"]):
        state = one if kind == "values" else state
    check(state, form)


def check(state: Any, form: Any) -> None:
    if form:
        assert isinstance(state["structured_response"], Mill)
    else:
        assert isinstance(state["messages"][-1].content, str)


def agent(model: ChatOpenAI, form: Any, calls: list[object]) -> Any:
    @tool(args_schema=Words)
    def look_up(word: str, old: bool) -> str:
        """Looks a mill up."""
        calls.append((word, old))
        return "it is by the water"

    return create_agent(model, [look_up], response_format=form)


if __name__ == "__main__":
    main(sys.argv[1])
