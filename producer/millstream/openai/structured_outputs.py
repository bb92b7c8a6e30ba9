"""Reads the format of an answer as OpenAI's `response_format` and vLLM's `structured_outputs` ask for it, for
clients, commands and batch files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from millstream.errors import InvalidRequest
from millstream.wire.messages.response_format import ResponseFormat
from millstream.wire.messages.validation_errors import invalid_request

FormatArgument = ResponseFormat | type[BaseModel] | Mapping[str, object]
SchemaArgument = type[BaseModel] | Mapping[str, object]  # a JSON schema, or OpenAI's `response_format`
Spelling = Callable[[str], str]  # of a field of `structured_outputs`, as the caller wrote it

_KINDS = {"json": "json_schema"} | {name: name for name in ("regex", "choice", "grammar", "json_object")}
_WHITESPACE = {"disable_any_whitespace": "compact", "whitespace_pattern": "whitespace_pattern"}
_WITHOUT_EFFECT = {"disable_fallback"}  # there is one compiler
_REFUSED = {
    "structural_tag": "is not supported; write the tags into a grammar",
    "disable_additional_properties": 'is not supported; write "additionalProperties": false into the schema',
}
_OF_TYPE = {"text": {"type"}, "json_object": {"type"}, "json_schema": {"type", "json_schema"}}
_OF_SCHEMA = {"name", "description", "schema", "strict"}  # a schema is always followed strictly


def asked_format(given: Mapping[str, Any]) -> ResponseFormat | None:
    """The format that the arguments `response_format` and `structured_outputs` ask for. Raises
    InvalidRequest.
    """
    asked = {
        name: read(given[name])
        for name, read in (("response_format", openai_format), ("structured_outputs", vllm_format))
        if given.get(name) is not None
    }
    both = [made for made in asked.values() if made is not None]
    if len(both) > 1:
        problem = "is given beside response_format; give one of the two"
        raise InvalidRequest("structured_outputs", given["structured_outputs"], problem)
    return both[0] if both else None


def openai_format(given: object) -> ResponseFormat | None:
    """The format of OpenAI's mapping; None for `{"type": "text"}`. Raises InvalidRequest."""
    if isinstance(given, ResponseFormat):
        return given
    if isinstance(given, type) and issubclass(given, BaseModel):
        text = schema_text("response_format", given)
        return _checked({"type": "json_schema", "text": text}, {"text": "response_format"})
    if not isinstance(given, Mapping):
        problem = 'give {"type": …} as OpenAI does, a pydantic model class, or a ResponseFormat'
        raise InvalidRequest("response_format", given, problem)
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in _OF_TYPE:
        problem = (
            f"must be one of {', '.join(_OF_TYPE)}; for a schema alone, and all else, use structured_outputs"
        )
        raise InvalidRequest("response_format.type", kind, problem)
    refuse_others("response_format", given, _OF_TYPE[kind])
    if kind == "text":
        return None
    text = _openai_schema(given.get("json_schema")) if kind == "json_schema" else ""
    return _checked({"type": kind, "text": text}, {"text": "response_format.json_schema.schema"})


def vllm_format(given: object, spelling: Spelling = "structured_outputs.{}".format) -> ResponseFormat:
    """Raises InvalidRequest."""
    if not isinstance(given, Mapping):
        raise InvalidRequest("structured_outputs", given, f"give a mapping with {_one_of_kinds()}")
    fields = {name: value for name, value in given.items() if value is not None and value is not False}
    for name, value in fields.items():
        if name not in (*_KINDS, *_WHITESPACE, *_WITHOUT_EFFECT):
            problem = _REFUSED.get(name, "is not known; leave it out")
            raise InvalidRequest(spelling(str(name)), value, problem)
    kinds = [name for name in _KINDS if name in fields]
    if not kinds:
        raise InvalidRequest(spelling(next(iter(fields), "json")), None, f"give {_one_of_kinds()}")
    name, *others = kinds
    if others:
        problem = f"is given beside {spelling(name)}; give one of the two"
        raise InvalidRequest(spelling(others[0]), fields[others[0]], problem)
    options = {wire: option for option, wire in _WHITESPACE.items() if option in fields}
    more = {wire: fields[option] for wire, option in options.items()}
    text = _vllm_text(name, fields[name], spelling(name))
    paths = {wire: spelling(option) for wire, option in options.items()} | {"text": spelling(name)}
    return _checked({"type": _KINDS[name], "text": text, **more}, paths)


def format_of_schema(given: SchemaArgument | str, where: str = "schema") -> dict[str, Any] | None:
    """A schema, or the text of one, as OpenAI's `response_format`, which may be given itself. Raises
    InvalidRequest.
    """
    if isinstance(given, Mapping) and given.get("type") in _OF_TYPE:  # a schema has none of these types
        return dict(given) if openai_format(given) else None
    made = vllm_format({"json": given}, lambda _: where)
    return {"type": "json_schema", "json_schema": {"schema": json.loads(made.text)}}


def _one_of_kinds() -> str:
    return f"exactly one of {', '.join(_KINDS)}"


def _vllm_text(name: str, value: Any, where: str) -> Any:
    if name == "json":
        return value if isinstance(value, str) else schema_text(where, value)
    if name == "choice":
        if not isinstance(value, list | tuple):
            raise InvalidRequest(where, value, "must be a list of texts")
        return _dumped(where, value)
    if name == "json_object":
        if value is not True:
            raise InvalidRequest(where, value, "must be true or false")
        return ""
    return value


def _openai_schema(given: Any) -> str:
    where = "response_format.json_schema"
    if not isinstance(given, Mapping):
        raise InvalidRequest(where, given, 'give {"name": …, "schema": …}')
    refuse_others(where, given, _OF_SCHEMA)
    return schema_text(f"{where}.schema", given.get("schema"))


def refuse_others(where: str, given: Mapping[Any, Any], known: set[str]) -> None:
    """An unknown field may be a limit on the answer, which must not be ignored."""
    for name, value in given.items():
        if name not in known and value is not None:
            raise InvalidRequest(f"{where}.{name}", value, "is not known here; leave it out")


def schema_text(where: str, schema: Any) -> str:
    """The schema's JSON text. Its keys keep their order, in which the model writes them."""
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        try:
            schema = schema.model_json_schema(schema_generator=_ClosedSchema)
        except PydanticUserError as error:
            problem = f"has no JSON schema ({error.message}); give the schema itself"
            raise InvalidRequest(where, schema, problem) from error
    elif not isinstance(schema, Mapping | bool):
        raise InvalidRequest(where, schema, "give the JSON schema, which is an object")
    return _dumped(where, dict(schema) if isinstance(schema, Mapping) else schema)


class _ClosedSchema(GenerateJsonSchema):
    """Forbids fields that a pydantic model does not have, unless its configuration allows them: an answer
    could have any, and pydantic would ignore them.
    """

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        made = super().model_schema(schema)
        if made.get("type") == "object":
            made.setdefault("additionalProperties", False)
        return made


def _dumped(where: str, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(where, value, f"cannot be written as JSON ({error}); change it") from error


def _checked(fields: Mapping[str, Any], paths: Mapping[str, str]) -> ResponseFormat:
    """`paths`: how the caller wrote the format's own fields."""
    try:
        return ResponseFormat.model_validate(fields, strict=True)
    except ValidationError as error:
        wrong = invalid_request(error)
        raise InvalidRequest(paths[wrong.field], wrong.value, wrong.problem) from None
