"""Compiles the grammar of a request, for the vocabulary of one model."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from millstream_worker.engine.grammars.answer_frames import joined, parts_of
from millstream_worker.engine.grammars.calls.parameters import parameters_of
from millstream_worker.engine.grammars.grammar_fault import (
    CpuBudget,
    InvalidGrammar,
    PlacedFault,
    path_of,
    pointer_of,
    reason_of,
)
from millstream_worker.engine.grammars.lark_pieces import without_tokens
from millstream_worker.engine.grammars.matcher import Matcher
from millstream_worker.engine.grammars.partial.best_effort import Arguments, BestEffort
from millstream_worker.engine.grammars.partial.partial_calls import PartialCalls
from millstream_worker.engine.grammars.schemas.instance_check import problem_of_schema
from millstream_worker.engine.grammars.schemas.subschemas import Schema
from millstream_worker.engine.grammars.spec_grammar import (
    EARLIER_WHITESPACE,
    grammar_of,
    kept_in_part,
    schema_grammar,
)
from millstream_worker.engine.protocol.request import EngineRequest, GrammarSpec

T = TypeVar("T")
Ends = tuple[int, ...]  # token ids
MOST_KEPT = 64  # compiled grammars
SEARCH_CPU_S = 2.0  # for the function, and the place in a schema, that is at fault


@dataclass(slots=True, eq=False)
class GrammarCompiler:
    """Caches the compiled grammars used last, and the reasons why others cannot be used.
    `tokenizer`: makes the model's, whose texts may also end by the tokens given, when the first grammar with
    these comes; takes seconds, even if there can be none.
    `check`: raises InvalidGrammar for one that must not be compiled here; returns the CPU seconds that this
    took. `validate`: returns why nothing can be validated by a JSON schema. All in one thread."""

    tokenizer: Callable[[Ends], LLTokenizer]
    check: Callable[[str], float]
    validate: Callable[[str], str] = problem_of_schema
    # of prompts, and of chats
    _tokenizers: dict[Ends, LLTokenizer | InvalidGrammar] = field(default_factory=dict)
    _compiled: OrderedDict[GrammarSpec, Matcher | InvalidGrammar] = field(default_factory=OrderedDict)
    compiled_total: int = 0
    reused_total: int = 0

    def matchers(self, request: EngineRequest) -> dict[int, Matcher]:
        """By choice that is not done, at the end of the output of earlier attempts. Raises InvalidGrammar."""
        assert request.grammar is not None, "a request without a grammar"
        spec, compiled = request.grammar, self.compile(request.grammar)
        choices = [choice for choice in range(request.choices) if choice not in request.done]
        return {choice: self._matcher(request, spec, compiled, choice) for choice in choices}

    def _matcher(self, request: EngineRequest, spec: GrammarSpec, compiled: Matcher, choice: int) -> Matcher:
        matcher = compiled.copy()
        earlier = request.outputs[choice] if choice < len(request.outputs) else ()
        if matcher.consume(earlier):
            return matcher
        if spec.whitespace_pattern is None and not spec.compact:
            spec = replace(spec, whitespace_pattern=EARLIER_WHITESPACE)
            if spec.channels is not None:  # earlier workers knew none
                spec = replace(spec, channels=None, thought_begin=None, thought_end=None)
            return self._matcher(request, spec, self.compile(spec), choice)
        raise InvalidGrammar(
            f"choice {choice} does not fit after {len(earlier)} tokens of an earlier attempt, which "
            "another version of the worker or of llguidance allowed; submit the request again"
        )

    def compile(self, spec: GrammarSpec) -> Matcher:
        """Raises InvalidGrammar."""
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
            self._tokenizers[spec.ends] = _or_reason(lambda: self.tokenizer(spec.ends))
        tokenizer = _unless_invalid(self._tokenizers[spec.ends])
        in_part: dict[str, str] = {}
        try:
            try:
                grammar = self._checked(spec)
            except InvalidGrammar:
                if spec.type != "tools":
                    raise
                effort = BestEffort(lambda *schema: self._check_schema(spec, *schema), self.validate)
                grammar = self._checked(spec, effort.arguments_of(json.loads(spec.text)["functions"]))
                in_part = effort.partial
            if spec.type == "tools":
                in_part |= kept_in_part(spec)
        except PlacedFault:
            raise
        except InvalidGrammar as error:
            reason = reason_of(str(error))
            place = self._place_at_fault(spec, reason, CpuBudget(SEARCH_CPU_S))
            raise InvalidGrammar(reason + place) from None
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits())
        if matcher.is_error():
            raise InvalidGrammar(reason_of(matcher.get_error()))
        return Matcher(matcher, PartialCalls(in_part, spec, tokenizer) if in_part else None)

    def _checked(self, spec: GrammarSpec, arguments: Sequence[Arguments] | None = None) -> str:
        grammar = grammar_of(spec, arguments)
        self.check(_without_tokens(grammar))
        return grammar

    def _check_schema(self, spec: GrammarSpec, schema: Schema, lenient: bool = False) -> float:
        """Raises ValueError."""
        return self.check(schema_grammar(spec, schema, lenient=lenient))

    def _place_at_fault(self, spec: GrammarSpec, reason: str, budget: CpuBudget) -> str:
        """The place in a schema, to be named in an error; that of an unwritable text is in the reason."""
        if spec.type == "tools":
            return self._function_at_fault(spec, budget)
        if spec.type != "json_schema" or reason.startswith("at /"):
            return ""
        place = self._place(spec, json.loads(spec.text), reason, budget)
        return f" (at {place})" if place else ""

    def _place(self, spec: GrammarSpec, schema: Schema, reason: str, budget: CpuBudget) -> str:
        """The place of the smallest part with this fault; empty if there is no time to find it."""

        def fails(part: Schema) -> bool:
            error = None if budget.is_over else budget.problem(partial(self._check_schema, spec, part))
            return error is not None and reason_of(str(error)) == reason

        place = pointer_of(path_of(schema, fails))
        return "" if budget.is_over else place

    def _function_at_fault(self, spec: GrammarSpec, budget: CpuBudget) -> str:
        """The first function whose parameters cannot be compiled by themselves, to be named in an error. The
        search has one bound for all of them: other requests wait.
        """
        for name, parameters, strict in json.loads(spec.text)["functions"]:
            if not strict:
                continue
            if budget.is_over:
                return f" (at fault is none of the functions before {name}; the others were not tried)"
            schema = parameters_of(parameters)
            if error := budget.problem(partial(self._check_schema, spec, schema)):
                place = self._place(spec, schema, reason_of(str(error)), budget)
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
