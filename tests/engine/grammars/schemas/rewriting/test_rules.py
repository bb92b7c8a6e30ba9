"""Each rule keeps its law: what the rewritten schema takes, the original takes, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from llguidance import LLMatcher
from support.engine.byte_grammars import TOKENIZER
from support.engine.random_schemas import RandomSchemas, fits

from millstream_worker.engine.grammars.schemas.rewriting import rules
from millstream_worker.engine.grammars.schemas.rewriting.negation import negation
from millstream_worker.engine.grammars.schemas.rewriting.rewrite import rewritten
from millstream_worker.engine.grammars.schemas.rewriting.rules import RULES, Rule
from millstream_worker.engine.grammars.schemas.rewriting.scope import Scope, Unknown

SCHEMAS, INSTANCES = 600, 12
KEYWORDS: dict[Rule, Sequence[str]] = {
    rules.unevaluated: ("unevaluatedProperties", "unevaluatedItems"),
    rules.idle_keywords: ("then", "else", "if", "uniqueItems", "minContains"),
    rules.whole_numbers: ("maxLength", "minItems", "const", "enum"),
    rules.unknown_formats: ("format",),
    rules.conditions: ("if",),
    rules.negations: ("not",),
    rules.exclusive_options: ("oneOf",),
    rules.dependencies: ("dependentRequired", "dependentSchemas"),
    rules.names_of_properties: ("propertyNames",),
    rules.unique_items: ("uniqueItems",),
    rules.contained: ("contains",),
    rules.some_property: ("minProperties",),
}


@pytest.mark.parametrize("rule", KEYWORDS, ids=lambda rule: rule.__name__)
def test_a_rule_changes_no_meaning(rule: Rule) -> None:
    changed = taken = 0
    for seed in range(SCHEMAS):
        given = RandomSchemas(seed)
        part = given.part(KEYWORDS[rule][seed % len(KEYWORDS[rule])])
        if rule is not rules.whole_numbers:  # which comes before all that count
            part = rules.whole_numbers(part, Scope(part))
        if rule is not rules.unevaluated and "unevaluated" in str(part):  # which the compiler refuses then
            continue
        try:
            made = rule(part, Scope(part))
        except Unknown:
            continue
        changed += repr(made) != repr(part)  # 1.0 is 1
        for _ in range(INSTANCES):
            instance = given.instance()
            assert fits(made, instance) == fits(part, instance), (seed, part, made, instance)
            taken += fits(part, instance)
    assert changed > 20
    assert taken > 100


def test_all_rules_are_tried() -> None:
    assert {*KEYWORDS, rules.local_dynamic_refs} == {*RULES}


def test_a_negation_takes_what_the_schema_does_not() -> None:
    said = 0
    for seed in range(2 * SCHEMAS):
        given = RandomSchemas(seed)
        schema = given.schema(seed % 3)
        try:
            made = negation(schema, Scope({}))
        except Unknown:
            continue
        said += 1
        for _ in range(INSTANCES):
            instance = given.instance()
            assert fits(made, instance) != fits(schema, instance), (seed, schema, made, instance)
    assert said > SCHEMAS / 3


@pytest.mark.slow
def test_a_rewritten_schema_takes_the_same() -> None:
    """But for one that the compiler refuses: what was evaluated may be told by what is gone."""
    for seed in range(2 * SCHEMAS):
        given = RandomSchemas(seed)
        schema = given.part("allOf", 3)
        made = rewritten(schema)
        for _ in range(0 if "unevaluated" in str(made) else INSTANCES):
            instance = given.instance()
            assert fits(made, instance) == fits(schema, instance), (seed, schema, made, instance)


@pytest.mark.slow
def test_a_grammar_accepts_nothing_that_the_schema_forbids() -> None:
    compiled = accepted = 0
    for seed in range(2 * SCHEMAS):
        given = RandomSchemas(seed)
        schema = given.part("anyOf", 3)
        options = {"whitespace_flexible": False, "lenient": False}
        form = LLMatcher.grammar_from_json_schema(json.dumps(rewritten(schema)), overrides=options)
        matcher = LLMatcher(TOKENIZER, form, log_level=0)
        compiled += not matcher.is_error()
        for _ in range(0 if matcher.is_error() else INSTANCES):
            own, instance = matcher.deep_copy(), given.instance()
            tokens = list(json.dumps(instance, separators=(",", ":")).encode())
            if own.try_consume_tokens(tokens) == len(tokens) and own.is_accepting():
                accepted += 1
                assert fits(schema, instance), (seed, schema, instance)
    assert compiled > SCHEMAS / 2
    assert accepted > SCHEMAS
