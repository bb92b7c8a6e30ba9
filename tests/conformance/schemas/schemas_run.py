"""Judges what the worker makes of schemas, and prints what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from conformance.environments import NotInstalled
from conformance.schemas import field_kinds, mcp_servers, official_suite
from conformance.schemas.compiling import Schemas
from conformance.schemas.field_kinds import Library
from millstream_worker.engine.grammars.grammar_compiler import InvalidGrammar

LEAST_OF_SUITE = 260  # schemas taken
MOST_FAULTS = {field_kinds.pydantic: 6, field_kinds.zod: 2}  # as response_format
LEAST_KINDS = {field_kinds.pydantic: 90, field_kinds.zod: 32}
LEAST_SERVERS = 7


def are_taken() -> bool:
    """True if no part is below its bar."""
    schemas = Schemas()
    parts: list[Callable[[], bool]] = [
        *(lambda library=library: _kinds(schemas, library) for library in MOST_FAULTS),
        lambda: _servers(schemas),
        lambda: _suite(schemas),
    ]
    passed = [_passed(part) for part in parts]
    return all(passed)


def _passed(part: Callable[[], bool]) -> bool:
    try:
        return part()
    except NotInstalled as error:
        print(f"  not installed: {error}")
        return False


def _kinds(schemas: Schemas, library: Callable[[], Library]) -> bool:
    told = library()
    as_format, as_tool = (list(field_kinds.faults(schemas, told.kinds, as_tool=one)) for one in (False, True))
    print(
        f"  {told.named}, {len(told.kinds)} kinds: {len(as_format)} refused as response_format, "
        f"{len(as_tool)} as parameters of a tool"
    )
    _tell("response_format", as_format)
    _tell("tool", as_tool)
    enough = len(told.kinds) >= LEAST_KINDS[library]
    return enough and len(as_format) <= MOST_FAULTS[library] and not as_tool


def _servers(schemas: Schemas) -> bool:
    refused = []
    count = 0
    for name, functions in mcp_servers.tools_of_servers():
        count += 1
        try:
            schemas.tools(functions)
        except InvalidGrammar as error:
            refused.append(f"{name}: {error}")
    print(f"  sets of tools of servers (MCP): {count - len(refused)} of {count} taken")
    _tell("tools", refused)
    return count >= LEAST_SERVERS and not refused


def _suite(schemas: Schemas) -> bool:
    tally = official_suite.judged(schemas)
    print(
        f"  JSON-Schema-Test-Suite, draft 2020-12: {tally.taken} of {tally.schemas} schemas taken; "
        f"{len(tally.wrong)} forbidden instances accepted, {tally.missed} allowed ones not accepted"
    )
    print(f"    refused: {', '.join(f'{name} {count}' for name, count in tally.refused.most_common())}")
    _tell("wrong", tally.wrong)
    return not tally.wrong and tally.taken >= LEAST_OF_SUITE


def _tell(about: str, faults: Sequence[str]) -> None:
    for fault in faults:
        print(f"    {about}: {fault}")
