"""llama-index: `llama_index_client.py URL`, by an interpreter that has it and nothing of Millstream."""

from __future__ import annotations

import sys
from importlib.metadata import version

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


def look_up(yes: bool) -> str:
    """Looks up."""
    return str(yes)


def main(url: str) -> None:
    print(f"llama-index-llms-openai-like {version('llama-index-llms-openai-like')}")
    place = {"api_base": f"{url}/v1", "api_key": "none", "model": "default"}
    hello = [ChatMessage(role="user", content="hello")]
    assert OpenAILike(**place, is_chat_model=True).chat(hello).raw is not None
    chat = OpenAILike(**place, is_chat_model=True, is_function_calling_model=True, max_tokens=500)
    assert list(chat.stream_chat(hello))
    print("  chat and stream passed")
    tool = FunctionTool.from_defaults(look_up)
    called = chat.chat_with_tools([tool], user_msg="yes?", tool_required=True)
    assert chat.get_tool_calls_from_response(called)[0].tool_name == "look_up"
    print("  tools passed")
    completions = OpenAILike(**place, is_chat_model=False)
    assert completions.complete("mills").raw is not None
    assert list(completions.stream_complete("mills"))
    print("  completions passed")


if __name__ == "__main__":
    main(sys.argv[1])
