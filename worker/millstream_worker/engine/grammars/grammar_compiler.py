"""Compiles the grammar of a request, for the vocabulary of one model."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import llguidance
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from millstream_worker.engine.grammars.answer_frames import (
    joined,
    object_schema,
    of_lark,
    parts_of,
    tools_grammar,
    with_thought,
)
from millstream_worker.engine.grammars.grammar_fault import place_of, reason_of
from millstream_worker.engine.grammars.lark_pieces import lark_of, without_tokens
from millstream_worker.engine.grammars.matcher import Matcher
from millstream_worker.engine.grammars.nested_schemas import Schema, with_schemas
from millstream_worker.engine.grammars.unwritable import ESCAPES, problem_of_texts
from millstream_worker.engine.protocol.request import EngineRequest, GrammarSpec

T = TypeVar("T")
Ends = tuple[int, ...]  # token ids
WHITESPACE = r"[ \n]{1,20}"  # between JSON's tokens: models without a bound repeat it up to max_tokens
MOST_KEPT = 64  # compiled grammars
SEARCH_S = 2.0  # from the begin of a compilation: for the place in a schema that is at fault
SEARCH_CPU_S = 1.0  # for the function at fault; one more may begin within it
_JSON = {"json_schema", "json_object"}
_ANY_OBJECT = '{"type": "object"}'
_ANYTHING = "{}"


class InvalidGrammar(ValueError):
    """The grammar cannot be used; the message says why."""


class GrammarCompiler:
    """Caches the compiled grammars used last, and the reasons why others cannot be used.
    `tokenizer`: makes the model's, whose texts may also end by the tokens given, when the first grammar with
    these comes; takes seconds, even if there can be none.
    `check`: raises InvalidGrammar for one that must not be compiled here; returns the CPU seconds that this
    took. All in one thread."""

    def __init__(self, tokenizer: Callable[[Ends], LLTokenizer], check: Callable[[str], float]) -> None:
        self._make_tokenizer = tokenizer
        self._check = check
        self._tokenizers: dict[Ends, LLTokenizer | InvalidGrammar] = {}  # of prompts, and of chats
        self._compiled: OrderedDict[GrammarSpec, Matcher | InvalidGrammar] = OrderedDict()
        self.compiled_total = 0
        self.reused_total = 0

    def matchers(self, request: EngineRequest) -> dict[int, Matcher]:
        """By choice that is not done, at the end of the output of earlier attempts. Raises InvalidGrammar."""
        assert request.grammar is not None, "a request without a grammar"
        compiled = self._compile(request.grammar)
        choices = [choice for choice in range(request.choices) if choice not in request.done]
        matchers = {choice: compiled.copy() for choice in choices}
        for choice, matcher in matchers.items():
            earlier = request.outputs[choice] if choice < len(request.outputs) else ()
            if not matcher.consume(earlier):
                raise InvalidGrammar(
                    f"choice {choice} does not fit after {len(earlier)} tokens of an earlier attempt, which "
                    "another version of the worker or of llguidance allowed; submit the request again"
                )
        return matchers

    def _compile(self, spec: GrammarSpec) -> Matcher:
        known = self._compiled.get(spec)
        if known is not None:
            self.reused_total += 1
        else:
            known = self._compiled[spec] = _or_reason(lambda: self._new(spec))
            self.compiled_total += isinstance(known, Matcher)
            if len(self._compiled) > MOST_KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(spec)
        return _unless_invalid(known)

    def _new(self, spec: GrammarSpec) -> Matcher:
        if spec.ends not in self._tokenizers:
            self._tokenizers[spec.ends] = _or_reason(lambda: self._make_tokenizer(spec.ends))
        tokenizer = _unless_invalid(self._tokenizers[spec.ends])
        end_s = time.monotonic() + SEARCH_S
        try:
            grammar = with_thought(_grammar(spec), spec)
            self._check(_without_tokens(grammar))
        except InvalidGrammar as error:
            reason = reason_of(str(error))
            raise InvalidGrammar(reason + self._place_at_fault(spec, reason, end_s)) from None
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits())
        if matcher.is_error():
            raise InvalidGrammar(reason_of(matcher.get_error()))
        return Matcher(matcher)

    def _place_at_fault(self, spec: GrammarSpec, reason: str, end_s: float) -> str:
        """The place in a schema, to be named in an error; that of an unwritable text is in the reason."""
        if spec.type == "tools":
            return self._function_at_fault(spec, end_s)
        if spec.type != "json_schema" or reason.startswith("at /"):
            return ""
        place = self._place(spec, json.loads(spec.text), reason, end_s)
        return f" (at {place})" if place else ""

    def _place(self, spec: GrammarSpec, schema: Schema, reason: str, end_s: float) -> str:
        def fails(part: Schema) -> bool:
            if time.monotonic() > end_s:
                return False
            try:
                self._check(_schema_grammar(spec, json.dumps(part)))
            except (ValueError, RecursionError) as error:
                return reason_of(str(error)) == reason
            return False

        return place_of(schema, fails)

    def _function_at_fault(self, spec: GrammarSpec, end_s: float) -> str:
        """The first function whose parameters cannot be compiled by themselves, to be named in an error. The
        search has one bound for all of them: other requests wait.
        """
        used_s = 0.0
        for name, parameters in json.loads(spec.text)["functions"]:
            if used_s > SEARCH_CPU_S:
                return f" (at fault is none of the functions before {name}; the others were not tried)"
            try:
                used_s += self._check(_schema_grammar(spec, object_schema(parameters)))
            except InvalidGrammar as error:
                schema = json.loads(object_schema(parameters))
                place = self._place(spec, schema, reason_of(str(error)), end_s)
                return f" (the parameters of {name}{f', at {place}' if place else ''})"
        return ""


def _without_tokens(grammar: str) -> str:
    """Returns a grammar in llguidance's form as the engine compiles it, with a letter for each token id."""
    parts = parts_of(grammar)
    for part in parts:
        if lark := part.get("lark_grammar"):
            part["lark_grammar"] = without_tokens(lark)
    return joined(parts)


def limits() -> LLParserLimits:
    """Above what public schemas need. They bound a mask only with the bounds of a format's shape: the work of
    one character, and the bytes that leave no choice, are not counted.
    """
    return LLParserLimits(
        initial_lexer_fuel=300_000,
        step_lexer_fuel=100_000,
        step_max_items=3000,
        max_lexer_states=100_000,
        verbose_errors=False,  # else errors quote the grammar
    )


def _or_reason(make: Callable[[], T]) -> T | InvalidGrammar:
    try:
        return make()
    except InvalidGrammar as error:
        return error


def _unless_invalid(made: T | InvalidGrammar) -> T:
    if isinstance(made, InvalidGrammar):
        raise InvalidGrammar(str(made))
    return made


def _grammar(spec: GrammarSpec) -> str:
    """In llguidance's own form. Raises InvalidGrammar."""
    try:
        if spec.type == "tools":
            return tools_grammar(spec, partial(_schema_grammar, spec))
        if spec.type in _JSON:
            text = spec.text if spec.type == "json_schema" else _ANY_OBJECT
            text = _ANYTHING if text.strip() == "true" else text  # which llguidance takes only inside others
            return _schema_grammar(spec, text)
        if spec.type == "choice":
            return of_lark(_choice(json.loads(spec.text)))
        if spec.type == "grammar":
            return of_lark(with_schemas(lark_of(spec.text), _with_one_spelling))
        return llguidance.grammar_from(spec.type, spec.text)  # type: ignore[arg-type]
    except (ValueError, RecursionError) as error:
        raise InvalidGrammar(reason_of(str(error))) from error


def _choice(texts: list[str]) -> str:
    """One of the texts, as a single terminal: each as its own would be too many from about 1,000 on."""
    return f"start: TEXT\nTEXT: {' | '.join(map(json.dumps, texts))}"


def _schema_grammar(spec: GrammarSpec, schema: str) -> str:
    made = _with_one_spelling(json.loads(schema))
    return LLMatcher.grammar_from_json_schema(json.dumps(made), overrides=_json_options(spec))


def _json_options(spec: GrammarSpec) -> Any:
    if spec.compact:
        return {"whitespace_flexible": False, "lenient": False}
    return {"whitespace_pattern": spec.whitespace_pattern or WHITESPACE, "lenient": False}


def _with_one_spelling(schema: Schema) -> Schema:
    """Returns the schema with escapes by code barred, so that each name has one spelling. Every schema passes
    here. Raises InvalidGrammar for one that requires a character which then cannot be written."""
    if problem := problem_of_texts(schema):
        raise InvalidGrammar(problem)
    own = schema.get("x-guidance")
    options = own if isinstance(own, dict) else {}
    return schema | {"x-guidance": options | {"json_allowed_escapes": ESCAPES}}
