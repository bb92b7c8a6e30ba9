"""An MCP client whose servers' tools are offered to the gateway's model: `mcp_loop.py COMMANDS URL`, by an
interpreter that has it and openai's. `COMMANDS`: a JSON object of command lines by the names of servers.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Any

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from openai import AsyncOpenAI
from tries import OWN, QUESTION, TOKENS, TURNS, Mill

CALLED = ("mcp-server-time", "@modelcontextprotocol/server-memory")  # no web, no waiting
LEAST_SERVERS = 7
MOST_RUNS = 30
ASK: dict[str, Any] = {
    "model": "default",
    "max_tokens": TOKENS,
    "parallel_tool_calls": False,
    "extra_body": OWN,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "mill", "schema": Mill.model_json_schema()}}

Tools = list[dict[str, Any]]


async def main(commands: str, url: str) -> None:
    print(f"mcp {version('mcp')}, openai {version('openai')}")
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w") as log:
        async with client, AsyncExitStack() as stack:
            sessions: dict[str, ClientSession] = {}
            for name, (command, *arguments) in json.loads(commands).items():
                server = StdioServerParameters(command=command, args=arguments, cwd=folder)
                streams = await stack.enter_async_context(stdio_client(server, log))
                sessions[name] = await stack.enter_async_context(ClientSession(*streams))
                await sessions[name].initialize()
            tools = {name: await listed(session) for name, session in sessions.items()}
            assert len(tools) >= LEAST_SERVERS, sorted(tools)
            for name, offered in tools.items():
                await required(client, name, offered)
            for more in ({}, {"response_format": FORMAT}):
                await loops(client, sessions, tools, more)


async def listed(session: ClientSession) -> Tools:
    """In OpenAI's form."""
    tools = (await session.list_tools()).tools
    return [
        {"type": "function", "function": {"name": one.name, "parameters": one.input_schema,
                                          "description": one.description or ""}}
        for one in tools
    ]  # fmt: skip


async def required(client: AsyncOpenAI, name: str, offered: Tools) -> None:
    """One call of any of a server's tools; the tiny model may write names until it is cut."""
    asked = {"tools": offered, "tool_choice": "required", "messages": [{"role": "user", "content": QUESTION}]}
    [choice] = (await client.chat.completions.create(**ASK | asked)).choices
    is_cut = choice.finish_reason == "length"
    assert choice.message.tool_calls or is_cut
    print(f"  {name}: {len(offered)} tools, a call{' that was cut' * is_cut}")


async def loops(
    client: AsyncOpenAI, sessions: dict[str, ClientSession], tools: dict[str, Tools], more: dict[str, Any]
) -> None:
    """With all tools of all servers, until some have been called and an answer has had its end."""
    offered = [one for of_server in tools.values() for one in of_server]
    ended = passed = runs = 0
    while runs < MOST_RUNS and not (ended and passed):
        runs += 1
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        for turn in range(TURNS):
            told = await client.chat.completions.create(
                **ASK, **more, tools=offered, messages=messages, tool_choice="auto" if turn else "required"
            )
            message = told.choices[0].message
            if not message.tool_calls:
                ended += told.choices[0].finish_reason == "stop"
                break
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                outcome = await called(sessions, tools, call)
                passed += 1
                messages.append({"role": "tool", "tool_call_id": call.id, "content": outcome})
    print(f"  {len(offered)} tools of {len(tools)} servers{' and a response_format' * bool(more)}: "
          f"{ended} of {runs} runs ended, with {passed or 'no'} calls in all")  # fmt: skip
    assert ended


async def called(sessions: dict[str, ClientSession], tools: dict[str, Tools], call: Any) -> str:
    """What the server says to the call, if it may be called; its errors, too, are for the model."""
    name = call.function.name
    known = [server for server in CALLED if name in {one["function"]["name"] for one in tools[server]}]
    if not known or not is_whole(call):
        return "not now"
    result = await sessions[known[0]].call_tool(name, json.loads(call.function.arguments))
    return result.model_dump_json()


def is_whole(call: Any) -> bool:
    try:
        return isinstance(json.loads(call.function.arguments), dict)
    except ValueError:
        return False


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
