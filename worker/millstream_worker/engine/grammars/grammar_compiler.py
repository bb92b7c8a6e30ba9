"""Compiles the grammar of a request, for the vocabulary of one model."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from millstream_worker.engine.grammars.answer_frames import joined, parts_of
from millstream_worker.engine.grammars.grammar_fault import (
    InvalidGrammar,
    PlacedFault,
    path_of,
    pointer_of,
    reason_of,
)
from millstream_worker.engine.grammars.lark_pieces import without_tokens
from millstream_worker.engine.grammars.matcher import Matcher
from millstream_worker.engine.grammars.partial.best_effort import Arguments, BestEffort, parameters_of
from millstream_worker.engine.grammars.partial.partial_calls import PartialCalls
from millstream_worker.engine.grammars.schemas.instance_check import problem_of_schema
from millstream_worker.engine.grammars.schemas.subschemas import Schema
from millstream_worker.engine.grammars.spec_grammar import EARLIER_WHITESPACE, grammar_of, schema_grammar
from millstream_worker.engine.protocol.request import EngineRequest, GrammarSpec

T = TypeVar("T")
Ends = tuple[int, ...]  # token ids
MOST_KEPT = 64  # compiled grammars
SEARCH_S = 2.0  # for the place in a schema that is at fault
SEARCH_CPU_S = 1.0  # for the function at fault; one more may begin within it


class GrammarCompiler:
    """Caches the compiled grammars used last, and the reasons why others cannot be used.
    `tokenizer`: makes the model's, whose texts may also end by the tokens given, when the first grammar with
    these comes; takes seconds, even if there can be none.
    `check`: raises InvalidGrammar for one that must not be compiled here; returns the CPU seconds that this
    took. `validate`: returns why nothing can be validated by a JSON schema. All in one thread."""

    def __init__(
        self,
        tokenizer: Callable[[Ends], LLTokenizer],
        check: Callable[[str], float],
        validate: Callable[[str], str] = problem_of_schema,
    ) -> None:
        self._make_tokenizer = tokenizer
        self._check = check
        self._validate = validate
        self._tokenizers: dict[Ends, LLTokenizer | InvalidGrammar] = {}  # of prompts, and of chats
        self._compiled: OrderedDict[GrammarSpec, Matcher | InvalidGrammar] = OrderedDict()
        self.compiled_total = 0
        self.reused_total = 0

    def matchers(self, request: EngineRequest) -> dict[int, Matcher]:
        """By choice that is not done, at the end of the output of earlier attempts. Raises InvalidGrammar."""
        assert request.grammar is not None, "a request without a grammar"
        spec, compiled = request.grammar, self._compile(request.grammar)
        choices = [choice for choice in range(request.choices) if choice not in request.done]
        return {choice: self._matcher(request, spec, compiled, choice) for choice in choices}

    def _matcher(self, request: EngineRequest, spec: GrammarSpec, compiled: Matcher, choice: int) -> Matcher:
        matcher = compiled.copy()
        earlier = request.outputs[choice] if choice < len(request.outputs) else ()
        if matcher.consume(earlier):
            return matcher
        if spec.whitespace_pattern is None and not spec.compact:
            spec = replace(spec, whitespace_pattern=EARLIER_WHITESPACE)
            return self._matcher(request, spec, self._compile(spec), choice)
        raise InvalidGrammar(
            f"choice {choice} does not fit after {len(earlier)} tokens of an earlier attempt, which "
            "another version of the worker or of llguidance allowed; submit the request again"
        )

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
        partial: dict[str, str] = {}
        try:
            try:
                grammar = self._checked(spec)
            except InvalidGrammar:
                if spec.type != "tools":
                    raise
                effort = BestEffort(lambda *schema: self._check_schema(spec, *schema), self._validate)
                grammar = self._checked(spec, effort.arguments_of(json.loads(spec.text)["functions"]))
                partial = effort.partial
        except PlacedFault:
            raise
        except InvalidGrammar as error:
            reason = reason_of(str(error))
            place = self._place_at_fault(spec, reason, time.monotonic() + SEARCH_S)
            raise InvalidGrammar(reason + place) from None
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits())
        if matcher.is_error():
            raise InvalidGrammar(reason_of(matcher.get_error()))
        return Matcher(matcher, PartialCalls(partial, spec, tokenizer) if partial else None)

    def _checked(self, spec: GrammarSpec, arguments: Sequence[Arguments] | None = None) -> str:
        grammar = grammar_of(spec, arguments)
        self._check(_without_tokens(grammar))
        return grammar

    def _check_schema(self, spec: GrammarSpec, schema: Schema, lenient: bool = False) -> float:
        """Raises ValueError."""
        return self._check(schema_grammar(spec, schema, lenient=lenient))

    def _place_at_fault(self, spec: GrammarSpec, reason: str, end_s: float) -> str:
        """The place in a schema, to be named in an error; that of an unwritable text is in the reason."""
        if spec.type == "tools":
            return self._function_at_fault(spec, end_s)
        if spec.type != "json_schema" or reason.startswith("at /"):
            return ""
        place = self._place(spec, json.loads(spec.text), reason, end_s)
        return f" (at {place})" if place else ""

    def _place(self, spec: GrammarSpec, schema: Schema, reason: str, end_s: float) -> str:
        """The place of the smallest part with this fault; empty if there is no time to find it."""

        def fails(part: Schema) -> bool:
            if time.monotonic() > end_s:
                return False
            try:
                self._check_schema(spec, part)
            except (ValueError, RecursionError) as error:
                return reason_of(str(error)) == reason
            return False

        place = pointer_of(path_of(schema, fails))
        return place if time.monotonic() <= end_s else ""

    def _function_at_fault(self, spec: GrammarSpec, end_s: float) -> str:
        """The first function whose parameters cannot be compiled by themselves, to be named in an error. The
        search has one bound for all of them: other requests wait.
        """
        used_s = 0.0
        for name, parameters, strict in json.loads(spec.text)["functions"]:
            if not strict:
                continue
            if used_s > SEARCH_CPU_S:
                return f" (at fault is none of the functions before {name}; the others were not tried)"
            schema = parameters_of(parameters)
            try:
                used_s += self._check_schema(spec, schema)
            except InvalidGrammar as error:
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
