"""Grammars over a vocabulary of bytes, compiled as the worker does it, but for the trial of their costs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from llguidance import LLTokenizer

from millstream_worker.engine.grammars.calls.call_form import HERMES, CallForm
from millstream_worker.engine.grammars.calls.call_reader import CallReader, calls_in
from millstream_worker.engine.grammars.grammar_compiler import GrammarCompiler
from millstream_worker.engine.grammars.matcher import Matcher
from millstream_worker.engine.protocol.request import EngineRequest, GrammarSpec

TOKENIZER = LLTokenizer("byte")
CALL = ("<tool_call>", "</tool_call>")  # as Hermes' templates write it


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
    form: CallForm = HERMES,
    answer: GrammarSpec | None = None,
) -> GrammarSpec:
    """`functions`: names, parameters as JSON, and whether they are strict; `tokens`: around a call;
    `answer`: the format of one without calls.
    """
    known = {text: token for text, token in zip(CALL, tokens, strict=True) if token is not None}
    fields = {"functions": list(functions), "many": many, "free": free, "form": form.plain(), "tokens": known}
    return GrammarSpec("tools", json.dumps(fields), answer=answer)


def in_channels(spec: GrammarSpec) -> GrammarSpec:
    """The same of a model with harmony's channels, where its turn begins. ^ is <|start|>, and so on."""
    if spec.type == "tools":
        known = {"<|channel|>": ord("#"), "<|message|>": ord("|"), "<|constrain|>": ord("%")}
        spec = replace(spec, text=json.dumps(json.loads(spec.text) | {"tokens": known}))
    header = (ord("^"), ord("#"), ord("|"))
    return replace(spec, channels=header, thought_begin=ord("#"), thought_end=ord("!"))


def whole_calls(text: str, *names: str) -> list[tuple[str, str]]:
    """Names and arguments of the whole calls in a text, in Hermes' form."""
    return [
        (call.name, call.arguments) for call in calls_in(text, HERMES, dict.fromkeys(names, "")) if call.whole
    ]


def is_cut(text: str, *names: str) -> bool:
    """True if the text ends within a call."""
    reader = CallReader(HERMES, dict.fromkeys(names, ""))
    reader.feed(text)
    return reader.begun and not text.removesuffix("<end>").endswith(CALL[1])
