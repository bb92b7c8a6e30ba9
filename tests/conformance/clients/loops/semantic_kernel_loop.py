"""Semantic Kernel: `semantic_kernel_loop.py URL`, by an interpreter that has it and nothing of Millstream."""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import version
from typing import Any

from openai import AsyncOpenAI
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory
from semantic_kernel.functions import kernel_function
from tries import OWN, QUESTION, TOKENS, TURNS, Mill, tried


class Mills:
    def __init__(self, calls: list[object]) -> None:
        self.calls = calls

    @kernel_function(name="look_up", description="Looks a mill up.")
    def look_up(self, old: bool) -> str:
        self.calls.append(old)
        return "it is by the water"


def main(url: str) -> None:
    print(f"semantic-kernel {version('semantic-kernel')}")
    for form in (None, Mill):
        for streamed in (False, True):
            what = f"auto function calls{' with a response_format' * bool(form)}{', streamed' * streamed}"
            tried(
                what,
                lambda calls, form=form, streamed=streamed: asyncio.run(run(url, form, streamed, calls)),
                CutAnswer,
            )


class CutAnswer(Exception):
    """An answer that has no end in its format."""


async def run(url: str, form: type[Mill] | None, streamed: bool, calls: list[object]) -> None:
    more: dict[str, Any] = {"response_format": form} if form else {}
    settings = OpenAIChatPromptExecutionSettings(
        max_tokens=TOKENS,
        extra_body=OWN,
        parallel_tool_calls=False,
        function_choice_behavior=FunctionChoiceBehavior.Auto(maximum_auto_invoke_attempts=TURNS),
        **more,
    )
    history = ChatHistory()
    history.add_user_message(QUESTION)
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        chat = OpenAIChatCompletion("default", async_client=client)
        kernel = Kernel()
        kernel.add_plugin(Mills(calls), "mills")
        if streamed:
            told = chat.get_streaming_chat_message_content(history, settings, kernel=kernel)
            parts = [part async for part in told if part is not None]
            ends, text = {part.finish_reason for part in parts}, "".join(part.content for part in parts)
        else:
            answer = await chat.get_chat_message_content(history, settings, kernel=kernel)
            assert answer is not None
            ends, text = {answer.finish_reason}, answer.content
    if form and "length" in ends:
        raise CutAnswer
    if form and "tool_calls" not in ends:
        form.model_validate_json(text)


if __name__ == "__main__":
    main(sys.argv[1])
