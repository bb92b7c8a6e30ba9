"""haystack: `haystack_client.py URL`, by an interpreter that has it and nothing of Millstream."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # before it is imported

from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret

PARAMETERS = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"],
              "additionalProperties": False}  # fmt: skip


def main(url: str) -> None:
    print(f"haystack-ai {version('haystack-ai')}")
    place = {"api_key": Secret.from_token("none"), "api_base_url": f"{url}/v1", "model": "default"}
    hello = [ChatMessage.from_user("hello")]
    answer = OpenAIChatGenerator(**place).run(hello)["replies"][0]
    assert answer.meta["finish_reason"] in ("stop", "length")
    print("  chat passed")
    chunks: list[object] = []
    short = {"max_tokens": 8}
    OpenAIChatGenerator(**place, generation_kwargs=short, streaming_callback=chunks.append).run(hello)
    assert chunks
    print("  stream passed")
    tool = Tool(name="look_up", description="Looks up.", parameters=PARAMETERS, function=print)
    called = {"max_tokens": 500, "tool_choice": "required", "parallel_tool_calls": False}
    reply = OpenAIChatGenerator(**place, tools=[tool], generation_kwargs=called).run(hello)["replies"][0]
    assert reply.tool_calls[0].tool_name == "look_up"
    outcome = ChatMessage.from_tool(tool_result="a house", origin=reply.tool_calls[0])
    OpenAIChatGenerator(**place, tools=[tool], generation_kwargs=short).run([*hello, reply, outcome])
    print("  tools passed")


if __name__ == "__main__":
    main(sys.argv[1])
