"""LangChain: `langchain_client.py URL`, by an interpreter that has it and nothing of Millstream."""

from __future__ import annotations

import sys
from importlib.metadata import version

from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel


class Agreement(BaseModel, extra="forbid"):  # the model would write keys until it is cut
    """Says whether one agrees."""

    yes: bool


def main(url: str) -> None:
    print(f"langchain-openai {version('langchain-openai')}")
    place = {"base_url": f"{url}/v1", "api_key": "none", "model": "default"}
    chat = ChatOpenAI(**place)
    assert chat.invoke("hello").response_metadata["finish_reason"] in ("stop", "length")
    print("  ChatOpenAI().invoke passed")
    short = ChatOpenAI(**place, max_tokens=8)
    parts = list(short.stream("hello"))
    assert sum((part.usage_metadata or {}).get("output_tokens", 0) for part in parts) <= 8
    assert len(short.batch(["hello", "and now?"])) == 2
    print("  stream and batch passed")
    once = {"tool_choice": "any", "parallel_tool_calls": False}  # the model would call until it is cut
    called = ChatOpenAI(**place, max_tokens=500).bind_tools([Agreement], **once).invoke("yes?")
    assert called.tool_calls[0]["name"] == "Agreement"
    agreed = ChatOpenAI(**place, max_tokens=500).with_structured_output(Agreement).invoke("yes?")
    assert isinstance(agreed, Agreement)
    print("  tools and structured output passed")
    llm = OpenAI(**place)
    assert isinstance(llm.invoke("mills"), str)  # a list of one prompt
    assert len(llm.generate(["mills", "wind"]).generations) == 2
    assert "".join(llm.stream("mills")) is not None
    print("  OpenAI().invoke, generate and stream passed")


if __name__ == "__main__":
    main(sys.argv[1])
