"""Grammars over a vocabulary of bytes, compiled as the worker does it, but for the trial of their costs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from llguidance import LLTokenizer

from millstream_worker.engine.grammars.grammar_compiler import GrammarCompiler
from millstream_worker.engine.grammars.matcher import Matcher
from millstream_worker.engine.protocol.request import EngineRequest, GrammarSpec

TOKENIZER = LLTokenizer("byte")
CALL = ("<tool_call>", "</tool_call>")  # as chat templates write it


def byte_compiler(check: Callable[[str], float] = lambda grammar: 0.0) -> GrammarCompiler:
    """`check`: the trial, if there is one."""
    return GrammarCompiler(lambda ends: TOKENIZER, check)


def compiled(spec: GrammarSpec, check: Callable[[str], float] = lambda grammar: 0.0) -> Matcher:
    return byte_compiler(check).matchers(EngineRequest(1, (1,), 5, grammar=spec))[0]


def by_schema(schema: object) -> Matcher:
    return compiled(GrammarSpec("json_schema", json.dumps(schema), compact=True))


def tools_spec(
    functions: Iterable[tuple[str, str, bool]],
    *,
    many: bool = False,
    free: bool = False,
    tokens: tuple[Any, Any] = (None, None),
) -> GrammarSpec:
    """`functions`: names, parameters as JSON, and whether they are strict; `tokens`: around a call."""
    marks = list(zip(CALL, tokens, strict=True))
    form = {"functions": list(functions), "many": many, "free": free, "marks": marks}
    return GrammarSpec("tools", json.dumps(form))
