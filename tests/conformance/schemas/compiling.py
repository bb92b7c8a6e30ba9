"""Compiles schemas as the worker does, for a vocabulary of bytes: a whole text is accepted or not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from support.engine.byte_grammars import CALL, TOKENIZER, byte_compiler, tools_spec

from millstream.wire.messages.response_format import problem_of_schema
from millstream_worker.engine.grammars.grammar_compiler import InvalidGrammar
from millstream_worker.engine.grammars.grammar_trial import GrammarTrial
from millstream_worker.engine.grammars.matcher import Matcher
from millstream_worker.engine.protocol.request import EngineRequest, GrammarSpec


@dataclass(frozen=True, slots=True)
class Function:
    """A tool. `strict`: its parameters are kept wholly, or it is refused."""

    name: str
    parameters: Any  # a JSON schema
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Compiled:
    matcher: Matcher

    def accepts(self, text: str) -> bool:
        """True if the text is a whole answer."""
        matcher = self.matcher.copy()
        if not matcher.consume(TOKENIZER.tokenize_str(text)):
            return False
        return matcher.complete or matcher.consume([TOKENIZER.eos_token])


class Schemas:
    """Compiles them within all bounds that a gateway and a worker have. Refusals are InvalidGrammar."""

    def __init__(self) -> None:
        self._compiler = byte_compiler(GrammarTrial().check)

    def response_format(self, schema: Any) -> Compiled:
        return self._compiled(GrammarSpec("json_schema", _text(schema), compact=True))

    def tools(self, functions: Sequence[Function]) -> Compiled:
        """One or more calls of them."""
        told = ((one.name, _text(one.parameters), one.strict) for one in functions)
        return self._compiled(tools_spec(told, many=True))

    def _compiled(self, spec: GrammarSpec) -> Compiled:
        return Compiled(self._compiler.matchers(EngineRequest(0, (), 1, grammar=spec))[0])


def call(name: str, arguments: str) -> str:
    """As chat templates write it. `arguments`: their JSON."""
    arguments = json.dumps(json.loads(arguments), ensure_ascii=False)
    return f'{CALL[0]}\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n{CALL[1]}'


def _text(schema: Any) -> str:
    text = json.dumps(schema)
    if problem := problem_of_schema(text):
        raise InvalidGrammar(problem)
    return text
