"""llama-index's agents: `llama_index_loop.py URL`, by an interpreter that has them."""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import version

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel
from tries import OWN, QUESTION, TOKENS, TURNS, Mill, Short, tried
from workflows.errors import WorkflowRuntimeError


class Words(BaseModel, extra="forbid"):
    word: Short
    old: bool


def main(url: str) -> None:
    print(f"llama-index-llms-openai-like {version('llama-index-llms-openai-like')}")
    llm = OpenAILike(
        model="default", api_base=f"{url}/v1", api_key="none", is_chat_model=True, max_retries=0,
        is_function_calling_model=True, max_tokens=TOKENS, context_window=16_384,
        additional_kwargs={"extra_body": OWN},
    )  # fmt: skip
    with asyncio.Runner() as runner:
        for form in (None, Mill):
            for streamed in (False, True):
                tried(
                    f"FunctionAgent{' with output_cls' * bool(form)}{', streamed' * streamed}",
                    lambda calls, form=form, streamed=streamed: runner.run(run(llm, form, streamed, calls)),
                    WorkflowRuntimeError,
                )


async def run(llm: OpenAILike, form: type[Mill] | None, streamed: bool, calls: list[object]) -> None:
    def look_up(word: str, old: bool) -> str:
        """Looks a mill up."""
        calls.append((word, old))
        return "it is by the water"

    tool = FunctionTool.from_defaults(look_up, fn_schema=Words)
    agent = FunctionAgent(
        tools=[tool], llm=llm, output_cls=form, streaming=streamed, allow_parallel_tool_calls=False
    )
    result = await agent.run(QUESTION, max_iterations=TURNS)
    assert result.response is not None
    if form and result.structured_response is not None:
        form.model_validate(result.structured_response)


if __name__ == "__main__":
    main(sys.argv[1])
