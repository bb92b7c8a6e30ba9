"""JSON-Schema-Test-Suite, draft 2020-12 without its optional parts, as the source of the package jsonschema
has it: for each schema, which instances it takes and which it forbids.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.environments import VENVS, pip
from conformance.schemas.compiling import Compiled, Schemas
from millstream_worker.engine.grammars.grammar_compiler import InvalidGrammar

PACKAGE = "jsonschema==4.26.0"
INSIDE = "/json/tests/draft2020-12/"
FOLDER = VENVS / "json-schema-test-suite"


@dataclass(slots=True)
class Tally:
    schemas: int = 0
    taken: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # by the file, which is named by a keyword
    wrong: list[str] = field(default_factory=list)  # accepted, and the schema forbids it
    missed: int = 0  # not accepted, and the schema allows it


def judged(schemas: Schemas) -> Tally:
    """Raises NotInstalled."""
    tally = Tally()
    for file in suite_files():
        for case in json.loads(file.read_text("utf-8")):
            tally.schemas += 1
            try:
                compiled = schemas.response_format(case["schema"])
            except InvalidGrammar:
                tally.refused[file.stem] += 1
                continue
            tally.taken += 1
            for test in case["tests"]:
                _judge(tally, compiled, test, f"{file.stem}: {case['description']}: {test['description']}")
    return tally


def _judge(tally: Tally, compiled: Compiled, test: dict[str, Any], name: str) -> None:
    accepted = [text for text in spellings(test["data"]) if compiled.accepts(text)]
    if test["valid"]:
        tally.missed += not accepted
    else:
        tally.wrong += [f"{name}: {text}" for text in accepted]


def spellings(value: Any) -> Iterator[str]:
    """The texts of an instance: as it is, and with each character of its objects' names as an escape."""
    plain = _written(value, _plain)
    yield plain
    escaped = _written(value, _escaped)
    if escaped != plain:
        yield escaped


def suite_files() -> list[Path]:
    if not FOLDER.exists():
        _fetch()
    files = sorted(FOLDER.glob("*.json"))
    assert files, f"{FOLDER} has no tests"
    return files


def _fetch() -> None:
    """Its source is built to read its metadata: pip has no other way to download one."""
    VENVS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=VENVS) as folder:
        made = Path(folder) / "tests"
        made.mkdir()
        pip(Path(sys.executable), "download", "--no-binary", ":all:", "--no-deps", PACKAGE, "-d", folder)
        [source] = Path(folder).glob("*.tar.gz")
        with tarfile.open(source) as archive:
            for member in archive:
                _, inside, name = member.name.partition(INSIDE)
                if inside and name.endswith(".json") and "/" not in name:
                    content = archive.extractfile(member)
                    assert content is not None, f"{member.name} is no file"
                    (made / name).write_bytes(content.read())
        made.rename(FOLDER)


def _written(value: Any, spell: Callable[[str], str]) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{spell(key)}:{_written(one, spell)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_written(one, spell) for one in value) + "]"
    return _plain(value)


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _escaped(name: str) -> str:
    units = name.encode("utf-16-be").hex()
    return '"' + "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4)) + '"'
