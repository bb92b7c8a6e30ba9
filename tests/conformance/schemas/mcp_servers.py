"""Servers of tools from the package indexes, and the tools that each lists: a process of its own, asked by
JSON-RPC over its input and output (https://modelcontextprotocol.io/specification).
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from conformance.environments import VENVS, NotInstalled, node_folder, python_of
from conformance.schemas.compiling import Function

NODE = {  # by package: its command, with the arguments that it needs
    "@playwright/mcp": ["playwright-mcp", "--headless"],
    "@modelcontextprotocol/server-filesystem": ["mcp-server-filesystem", "."],
    "@modelcontextprotocol/server-memory": ["mcp-server-memory"],
    "@modelcontextprotocol/server-everything": ["mcp-server-everything"],
    "@modelcontextprotocol/server-sequential-thinking": ["mcp-server-sequential-thinking"],
}
PYTHON = {
    "mcp-server-git": ["mcp-server-git"],
    "mcp-server-time": ["mcp-server-time", "--local-timezone", "UTC"],
    "mcp-server-fetch": ["mcp-server-fetch"],
}
ANSWER_S = 60  # of a server, with its start
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "tools", "version": "0"}}


def commands() -> dict[str, list[str]]:
    """By the name of a package. Raises NotInstalled."""
    folders = (node_folder("mcp-node", list(NODE)) / ".bin", python_of("mcp-python", list(PYTHON)).parent)
    return {
        name: [str(folder / command), *arguments]
        for folder, servers in zip(folders, (NODE, PYTHON), strict=True)
        for name, (command, *arguments) in servers.items()
    }


def tools_of_servers() -> Iterator[tuple[str, list[Function]]]:
    """By the name of a package. Raises NotInstalled, also for one that does not answer."""
    for name, command in commands().items():
        yield name, listed(command)


def listed(command: Sequence[str]) -> list[Function]:
    """All tools of the server, from its first page to its last."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as folder, (VENVS / "mcp.log").open("w") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder, env=own
        )
        limit = threading.Timer(ANSWER_S, process.kill)
        limit.start()
        try:
            return [_function(tool) for tool in _pages(process)]
        except (OSError, ValueError, KeyError) as error:
            raise NotInstalled(f"{command[0]} does not answer ({error!r}); see {VENVS / 'mcp.log'}") from None
        finally:
            limit.cancel()
            process.kill()
            process.communicate()


def _function(tool: dict[str, Any]) -> Function:
    return Function(tool["name"], tool["inputSchema"])


def _pages(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    _asked(process, "initialize", HELLO)
    _tell(process, {"method": "notifications/initialized"})
    page: dict[str, Any] = {"nextCursor": None}
    while "nextCursor" in page:
        cursor = page["nextCursor"]
        page = _asked(process, "tools/list", {} if cursor is None else {"cursor": cursor})
        yield from page["tools"]


def _asked(process: subprocess.Popen[str], method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The result; other messages of the server are passed over. Raises KeyError for an error."""
    _tell(process, {"method": method, "params": params, "id": method})
    assert process.stdout is not None
    for line in process.stdout:
        message = json.loads(line)
        if message.get("id") == method:
            return dict(message["result"])
    raise OSError("it has ended")


def _tell(process: subprocess.Popen[str], message: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
    process.stdin.flush()
