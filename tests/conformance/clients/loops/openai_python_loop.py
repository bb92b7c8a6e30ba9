"""openai's `parse` and `stream`: `openai_python_loop.py URL`, by an interpreter without Millstream."""

from __future__ import annotations

import sys
from typing import Any

import openai
from pydantic import BaseModel
from tries import OWN, QUESTION, TOKENS, TURNS, Mill, OutOfTurns, Short, tried


class LookUp(BaseModel, extra="forbid"):
    """Looks a mill up."""

    word: Short
    old: bool


ASK: dict[str, Any] = {
    "model": "default", "max_tokens": TOKENS, "parallel_tool_calls": False, "response_format": Mill,
    "tools": [openai.pydantic_function_tool(LookUp)], "extra_body": OWN,
}  # fmt: skip


def main(url: str) -> None:
    print(f"openai {openai.__version__}")
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    cut = openai.LengthFinishReasonError

    def parsed(messages: list[Any]) -> Any:
        return client.chat.completions.parse(**ASK, messages=messages)

    def streamed(messages: list[Any]) -> Any:
        with client.chat.completions.stream(**ASK, messages=messages) as stream:
            kinds = {event.type for event in stream}
            whole = stream.get_final_completion()
        done = "tool_calls.function.arguments.done" if whole.choices[0].message.tool_calls else "content.done"
        assert done in kinds, kinds
        return whole

    tried("parse with tools and response_format", lambda calls: loop(parsed, calls), cut)
    tried("stream with tools and response_format", lambda calls: loop(streamed, calls), cut)


def loop(answer: Any, calls: list[object]) -> None:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    for _ in range(TURNS):
        message = answer(messages).choices[0].message
        if not message.tool_calls:
            assert isinstance(message.parsed, Mill)
            return
        messages.append(message)
        for call in message.tool_calls:
            assert isinstance(call.function.parsed_arguments, LookUp)
            calls.append(call.function.parsed_arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "it is by the water"})
    raise OutOfTurns


if __name__ == "__main__":
    main(sys.argv[1])
