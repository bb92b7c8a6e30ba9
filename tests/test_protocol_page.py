"""The protocol page says what the code does: bounds of all fields, the client's bounds of a queue."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from millstream.client.session.lost_entry_probe import AFTER_S, AGAIN_S, MOST
from millstream.client.session.options import ClientOptions
from millstream.gateway.redis.gateway_calls import GATEWAY
from millstream.wire.calls.scripts import PROTOCOL, script_paths
from millstream.wire.messages.choices import Delta
from millstream.wire.messages.job_messages import Request, Result
from millstream.wire.state.heartbeat import Heartbeat

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "ops" / "pages" / "protocol.md").read_text("utf-8")
SCHEMA = Request.model_json_schema()
KINDS = {"integer": "whole number", "object": "map", "array": "list", "boolean": "true or false"}


def bounds_table() -> str:
    """The table between the page's `bounds` marks; run this file to print it."""
    rows = ["| field | is | default | bounds |", "|---|---|---|---|"]
    for path, field in fields_of(SCHEMA):
        kind, bounds = described(field)
        default = field.get("default")
        rows.append(f"| `{path}` | {kind} | {shown(default)} | {bounds} |")
    return "\n".join(rows)


def fields_of(schema: dict[str, Any], above: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, field in schema["properties"].items():
        inner = resolved(field)
        if "properties" in inner:
            yield from fields_of(inner, f"{above}{name}.")
        else:
            yield f"{above}{name}", field
            if "properties" in (item := resolved(inner.get("items", {}))):
                yield from fields_of(item, f"{above}{name}[].")


def resolved(field: dict[str, Any]) -> dict[str, Any]:
    """Without references, and without null, which is the same as absent."""
    given = next((one for one in field.get("anyOf", ()) if one.get("type") != "null"), field)
    if "$ref" in given:
        return resolved(SCHEMA["$defs"][given["$ref"].rpartition("/")[2]])
    return dict(given)


def described(field: dict[str, Any]) -> tuple[str, str]:
    """What a value is, and its bounds."""
    inner = resolved(field)
    if "enum" in inner:
        return "string", " or ".join(f"`{value}`" for value in inner["enum"])
    kind, parts = KINDS.get(inner["type"], inner["type"]), list(limits(inner))
    kind = "bytes" if inner.get("format") in ("binary", "base64url") else kind
    for name, part in (("items", "each"), ("additionalProperties", "values"), ("propertyNames", "names")):
        if (
            isinstance(inner.get(name), dict)
            and (item := resolved(inner[name]))
            and item.get("type") != "object"
        ):
            each, bounds = described({"type": "string"} | item)
            parts.append(f"{part}: {each}{', ' if bounds else ''}{bounds}")
    return kind, "; ".join(parts)


def limits(inner: dict[str, Any]) -> Iterator[str]:
    """What a schema says of size."""
    for name, words, unit in (
        ("minimum", "at least", ""),
        ("exclusiveMinimum", "above", ""),
        ("maximum", "at most", ""),
        ("exclusiveMaximum", "below", ""),
        ("minLength", "at least", " character"),
        ("maxLength", "at most", " characters"),
        ("maxItems", "at most", " items"),
        ("maxProperties", "at most", " entries"),
    ):
        if name in inner:
            yield f"{words} {number(inner[name])}{unit}"


def number(value: float) -> str:
    for power in (24, 31, 53, 63):
        for sign, text in ((1, ""), (-1, "-")):
            if value == sign * 2**power:
                return f"{text}2^{power}"
    return f"{value:,.0f}" if value == int(value) else str(value)


def shown(default: Any) -> str:
    if default is None or default in ("", {}, []):
        return "–"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def test_the_bounds_of_every_field_stand_on_the_page() -> None:
    table = re.search(r"<!-- bounds -->\n(.*?)\n<!-- /bounds -->", PAGE, re.DOTALL)
    assert table is not None
    assert table[1] == bounds_table()


@pytest.mark.parametrize("message", [Delta, Result])
def test_all_fields_of_answers_stand_on_the_page(message: type[Delta | Result]) -> None:
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", PAGE))))
    schema = message.model_json_schema()
    fields = {name for part in (schema, *schema["$defs"].values()) for name in part.get("properties", ())}
    assert fields >= {"choices", "top", "token"}
    assert fields - words == set()


def test_all_fields_of_heartbeats_stand_on_the_page() -> None:
    part = PAGE.partition("\n## Versions\n")[2].partition("\n## ")[0]
    assert {field.name for field in fields(Heartbeat)} - set(re.findall(r"`(\w+)`", part)) == set()


def test_what_clients_should_agree_about_is_what_ours_sends() -> None:
    options, text = ClientOptions(), " ".join(PAGE.split())
    stated = f"{options.max_entries:,} entries, {options.max_bytes:,} bytes and {options.result_ttl_ms:,} ms"
    assert stated in text
    assert f"nothing was heard of a job for {AFTER_S:.0f} s" in text
    assert f"once in {AGAIN_S:.0f} s for one job and about {MOST:,} jobs in that time" in text


def test_the_tables_of_scripts_name_what_there_is() -> None:
    """The workers' own scripts are not on the page."""
    tables = PAGE.split("## Scripts")[1].split("\n| Script |")[1:]
    named = {
        name
        for table in tables
        for name in re.findall(r"^\| `(\w+)` \|", table.split("\n\n")[0], re.MULTILINE)
    }
    assert {*script_paths(GATEWAY)} < named < {*script_paths(PROTOCOL), *script_paths(GATEWAY)}


if __name__ == "__main__":
    print(bounds_table())
