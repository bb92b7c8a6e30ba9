"""The programs, each in an environment of its own, with their checks in the folder `clients`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

from conformance.environments import TORCH, NotInstalled, node_folder, python_of, vllm_python
from conformance.stands import Stand

CLIENTS = Path(__file__).with_name("clients")
LIMIT_S = 900
# 1.40 gives httpx an argument that newer ones do not take.
OPENAI = {
    "openai-1.40.0": ["openai==1.40.0", "httpx<0.28"],
    "openai-1.109.1": ["openai==1.109.1"],
    "openai-2.8.0": ["openai==2.8.0"],
    "openai-newest": ["openai"],
}
NEWEST = {
    "litellm": ["litellm"],
    "langchain": ["langchain-openai", "langchain"],
    "haystack": ["haystack-ai"],
    "llama-index": ["llama-index-llms-openai-like"],
    "guidellm": ["guidellm", TORCH],
    "pydantic-ai": ["pydantic-ai-slim[openai]"],
    "instructor": ["instructor"],
    "outlines": ["outlines", "openai"],
}
IMAGES = {
    "openai-images": ["openai", "pillow"],
    "docling": ["docling", TORCH],
    "olmocr": ["olmocr", TORCH],
    "mineru": ["mineru-vl-utils"],
}
NODE = {
    "openai-node": ["openai", "zod"],
    "vercel-ai": ["ai", "@ai-sdk/openai-compatible", "zod"],
}

Command = Callable[[], list[str]]


def openai_commands() -> dict[str, Command]:
    """By the name of a version; their model counts."""
    return {name: partial(_python, name, packages, "openai_python") for name, packages in OPENAI.items()}


def commands() -> dict[str, Command]:
    """By the name of a program; their model is the tiny one."""
    named = {
        name: partial(_python, name, packages, f"{name.replace('-', '_')}_client")
        for name, packages in NEWEST.items()
    }
    nodes = {name: partial(_node, name, packages) for name, packages in NODE.items()}
    return named | nodes | {"vllm-bench": _vllm_bench}


def image_commands() -> dict[str, Command]:
    """By the name of a program that sends images; their model is tiny, and reads them."""
    return {
        name: partial(_python, name, packages, f"{name.replace('-', '_')}_client")
        for name, packages in IMAGES.items()
    }


def check(command: Command, stand: Stand) -> bool:
    """True if the program does with the gateway what its script asks of it."""
    return passes(command, stand.url, str(stand.checkpoint))


def passes(command: Command, *arguments: str) -> bool:
    """True if the script passes with these behind its name."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "HF_HUB_OFFLINE": "1"
    }
    try:
        line = [*command(), *arguments]
    except NotInstalled as error:
        print(f"  not installed: {error}")
        return False
    try:
        return not subprocess.run(line, check=False, timeout=LIMIT_S, env=own).returncode
    except subprocess.TimeoutExpired:
        print(f"  not done within {LIMIT_S} s")
        return False


def _python(name: str, packages: list[str], script: str) -> list[str]:
    python = python_of(name, packages, fresh=name == "openai-newest")
    return [str(python), str(CLIENTS / f"{script}.py")]


def _node(name: str, packages: list[str]) -> list[str]:
    return node_line(name, packages, CLIENTS / f"{name.replace('-', '_')}.cjs")


def node_line(name: str, packages: list[str], script: Path) -> list[str]:
    return ["env", f"NODE_PATH={node_folder(name, packages)}", "node", str(script)]


def _vllm_bench() -> list[str]:
    return [str(vllm_python()), str(CLIENTS / "vllm_bench.py")]
