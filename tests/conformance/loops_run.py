"""Agents of frameworks, each in an environment of its own, with their scripts in the folder `clients/loops`.
All that they and the gateway say to each other is judged, too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import partial

from conformance.clients_run import CLIENTS, NEWEST, NODE, OPENAI, Command, node_line, passes
from conformance.environments import python_of
from conformance.schemas import mcp_servers
from conformance.stands import Stand
from conformance.watch.answers import BrokenRule, choices_of
from conformance.watch.exchanges import CHAT, Exchange
from conformance.watch.forwarder import forwarding
from conformance.watch.rules import faults

LOOPS = CLIENTS / "loops"
MOST_TOLD = 12  # faults
# By the name of a script: its environment, and the packages in it.
PYTHON = {
    "openai-python": ("openai-newest", OPENAI["openai-newest"]),
    **{name: (name, NEWEST[name]) for name in ("pydantic-ai", "langchain", "instructor", "llama-index")},
    "openai-agents": ("openai-agents", ["openai-agents"]),
    "smolagents": ("smolagents", ["smolagents[openai]"]),
    "semantic-kernel": ("semantic-kernel", ["semantic-kernel"]),
    "mcp": ("mcp-client", ["mcp", "openai"]),
}


def loop_commands() -> dict[str, Command]:
    """By the name of a check."""
    pythons = {f"{name}-loop": partial(_python, name) for name in PYTHON}
    return pythons | {f"{name}-loop": partial(_node, name) for name in NODE}


def watched(command: Command, marks: Sequence[str], stand: Stand) -> bool:
    """True if the script passes, and no answer of the gateway has a fault. `marks`: around calls."""
    with forwarding(stand.url) as forwarder:
        passed = passes(command, forwarder.url)
        found = Counter(fault for one in forwarder.exchanges for fault in faults(one, marks))
        print(f"  the gateway: {_tally(forwarder.exchanges)}, {len(found)} faults")
    for fault, count in found.most_common(MOST_TOLD):
        print(f"  fault, {count} times: {fault}")
    return passed and not found


def _tally(exchanges: Sequence[Exchange]) -> str:
    """Counts of answers to chats; one that is broken is told as a fault."""
    counts = Counter[str]()
    for exchange in exchanges:
        if exchange.path != CHAT or exchange.status != 200:
            continue
        counts["answers"] += 1
        counts["streamed"] += exchange.is_streamed
        try:
            choices = choices_of(exchange)
        except BrokenRule:
            continue
        counts["with calls"] += any(choice.calls for choice in choices)
        counts["cut"] += any(choice.is_cut for choice in choices)
    return ", ".join(f"{count} {what}" for what, count in counts.items())


def _python(name: str) -> list[str]:
    environment, packages = PYTHON[name]
    line = [str(python_of(environment, packages)), str(LOOPS / f"{name.replace('-', '_')}_loop.py")]
    return [*line, json.dumps(mcp_servers.commands())] if name == "mcp" else line


def _node(name: str) -> list[str]:
    return node_line(name, NODE[name], LOOPS / f"{name.replace('-', '_')}_loop.cjs")
