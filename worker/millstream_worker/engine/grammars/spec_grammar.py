"""The grammar of a spec in llguidance's own form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import llguidance
from llguidance import LLMatcher

from millstream_worker.engine.grammars.answer_frames import of_lark, tools_grammar, with_thought
from millstream_worker.engine.grammars.calls.call_form import CallForm
from millstream_worker.engine.grammars.calls.parameters import closed_parameters, parameters_in, parameters_of
from millstream_worker.engine.grammars.grammar_fault import InvalidGrammar, PlacedFault, reason_of
from millstream_worker.engine.grammars.lark_pieces import lark_of
from millstream_worker.engine.grammars.nested_schemas import with_schemas
from millstream_worker.engine.grammars.partial.best_effort import Arguments
from millstream_worker.engine.grammars.schemas.rewriting.rewrite import rewritten
from millstream_worker.engine.grammars.schemas.subschemas import Schema
from millstream_worker.engine.grammars.schemas.unwritable import ESCAPES, problem_of_texts
from millstream_worker.engine.protocol.request import GrammarSpec

WHITESPACE = r" |\n {0,16}"  # between JSON's tokens, as models write it: small ones fill what is allowed
EARLIER_WHITESPACE = r"[ \n]{1,20}"  # what earlier workers allowed, in calls as well
_JSON = {"json_schema", "json_object"}
_ANY_OBJECT = '{"type": "object"}'
_ANYTHING = "{}"


def grammar_of(spec: GrammarSpec, arguments: Sequence[Arguments] | None = None) -> str:
    """`arguments`: of each function, where not those that the spec asks for. Raises InvalidGrammar."""
    try:
        return with_thought(_without_thought(spec, arguments), spec)
    except (ValueError, RecursionError) as error:
        raise InvalidGrammar(reason_of(str(error))) from error


def schema_grammar(spec: GrammarSpec, schema: Schema, *, lenient: bool = False) -> str:
    """`lenient`: keywords that the compiler does not know are ignored. Raises ValueError."""
    made = json.dumps(_with_one_spelling(schema))
    return LLMatcher.grammar_from_json_schema(made, overrides=_json_options(spec, lenient=lenient))


def _without_thought(spec: GrammarSpec, arguments: Sequence[Arguments] | None) -> str:
    if spec.type == "tools":
        if arguments is None:
            functions = json.loads(spec.text)["functions"]
            read = parameters_of if spec.whitespace_pattern else closed_parameters
            arguments = [Arguments(read(parameters)) for _, parameters, _ in functions]
        return _tools(spec, arguments)
    if spec.type in _JSON:
        return schema_grammar(spec, _schema_of(spec))
    if spec.type == "choice":
        return of_lark(_choice(json.loads(spec.text)))
    if spec.type == "grammar":
        return of_lark(with_schemas(lark_of(spec.text), _with_one_spelling))
    return llguidance.grammar_from(spec.type, spec.text)  # type: ignore[arg-type]


def _tools(spec: GrammarSpec, arguments: Sequence[Arguments]) -> str:
    form = json.loads(spec.text)
    written, answer = CallForm.of_plain(form["form"]), spec.answer
    made = None if answer is None else _without_thought(answer, None)
    if written.key and spec.whitespace_pattern is None:
        described = [parameters_in(one.schema) for one in arguments]
        values = {
            f"value_{place}_{number}": schema_grammar(spec, one.schema, lenient=arguments[place].lenient)
            for place, known in enumerate(described)
            for number, one in enumerate(known or ())
            if not one.is_text
        }
        return tools_grammar(spec, values, made, described)
    schemas = [one.schema for one in arguments]
    if answer is not None and not written.tag:
        # With the same white space: the lexer takes the longest piece, and a call may begin as an answer.
        schemas = [
            written.call_schema(name, schema)
            for (name, *_), schema in zip(form["functions"], schemas, strict=True)
        ]
        made = schema_grammar(spec, _schema_of(answer))
    grammars = (
        schema_grammar(spec, schema, lenient=one.lenient)
        for schema, one in zip(schemas, arguments, strict=True)
    )
    return tools_grammar(spec, {f"arguments_{place}": one for place, one in enumerate(grammars)}, made)


def kept_in_part(spec: GrammarSpec) -> dict[str, str]:
    """Returns the functions that a form which writes parameters one by one cannot keep whole, with their
    schemas as JSON text, by name. Raises PlacedFault for one that is strict.
    """
    form = json.loads(spec.text)
    found = {}
    for name, parameters, strict in form["functions"] if form["form"]["key"] else ():
        known = parameters_in(closed_parameters(parameters))
        odd = [] if known is None else [one.name for one in known if not one.is_exact]
        if known is not None and not odd:
            continue
        if strict:
            place = f", at /properties/{odd[0]:.40}" if odd else ""
            raise PlacedFault(
                "this model's form of calls has each parameter by itself, text as it is: it keeps neither "
                f"bounds of text nor more than properties (the parameters of {name}{place})"
            )
        found[name] = json.dumps(parameters_of(parameters))
    return found


def _schema_of(spec: GrammarSpec) -> Schema:
    text = spec.text if spec.type == "json_schema" else _ANY_OBJECT
    # `true` is taken only inside others
    schema: Schema = json.loads(_ANYTHING if text.strip() == "true" else text)
    return schema


def _choice(texts: list[str]) -> str:
    """One of the texts, as a single terminal: each as its own would be too many from about 1,000 on."""
    return f"start: TEXT\nTEXT: {' | '.join(map(json.dumps, texts))}"


def _json_options(spec: GrammarSpec, *, lenient: bool) -> Any:
    options = {"lenient": lenient, "coerce_one_of": lenient}
    if spec.type == "tools" and not spec.whitespace_pattern:  # as chat templates write earlier calls
        form = json.loads(spec.text)["form"]
        separators = {name: form[name] for name in ("item_separator", "key_separator")}
        return options | {"whitespace_flexible": False} | separators
    if spec.compact:
        return options | {"whitespace_flexible": False}
    return options | {"whitespace_pattern": spec.whitespace_pattern or WHITESPACE}


def _with_one_spelling(schema: Schema) -> Schema:
    """Returns the schema as the compiler knows it, with escapes by code barred, so that each name has one
    spelling. Every schema passes here. Raises InvalidGrammar for one that requires a character which then
    cannot be written."""
    if problem := problem_of_texts(schema):
        raise InvalidGrammar(problem)
    own = schema.get("x-guidance")
    options = own if isinstance(own, dict) else {}
    return rewritten(schema) | {"x-guidance": options | {"json_allowed_escapes": ESCAPES}}
