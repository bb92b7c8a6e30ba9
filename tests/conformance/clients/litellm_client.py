"""litellm: `litellm_client.py URL`, by an interpreter that has it and nothing of Millstream."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # before it is imported: it would ask the network

import litellm

litellm.suppress_debug_info = True

LOOK_UP = {"name": "look_up", "parameters": {"type": "object", "properties": {"yes": {"type": "boolean"}},
           "required": ["yes"], "additionalProperties": False}}  # fmt: skip


def main(url: str) -> None:
    print(f"litellm {version('litellm')}")
    place = {"api_base": f"{url}/v1", "api_key": "none"}
    chat: dict[str, Any] = place | {
        "model": "openai/default",
        "messages": [{"role": "user", "content": "hello"}],
    }
    answer = litellm.completion(**chat, max_tokens=8)
    assert answer.usage.completion_tokens <= 8
    chunks = list(litellm.completion(**chat, max_tokens=8, stream=True))
    assert litellm.stream_chunk_builder(chunks, messages=chat["messages"]).choices[0].finish_reason
    print("  chat and stream passed")
    tools = {
        "tools": [{"type": "function", "function": LOOK_UP}],
        "tool_choice": "required",
        "parallel_tool_calls": False,  # the model would call until it is cut
        "max_tokens": 500,
    }
    called = litellm.completion(**chat, **tools)
    assert called.choices[0].message.tool_calls[0].function.name == "look_up"
    print("  tools passed")
    for prompt, count in (("mills", 1), (["mills", "wind"], 2)):
        text = litellm.text_completion(
            model="text-completion-openai/default", prompt=prompt, max_tokens=4, **place
        )
        assert [choice.index for choice in text.choices] == list(range(count))
    print("  completions passed")
    try:
        litellm.completion(**chat, max_tokens=10**6)
    except litellm.ContextWindowExceededError:
        print("  the end of the context passed")
    else:
        raise AssertionError("an answer of 10**6 tokens was not refused")


if __name__ == "__main__":
    main(sys.argv[1])
