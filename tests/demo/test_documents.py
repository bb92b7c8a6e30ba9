"""The demo's documents: as their source says, with the schema of the objects that are read out of answers."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

DEMO = Path(__file__).parents[2] / "ops" / "demo"


def test_the_file_is_what_its_source_writes() -> None:
    source = runpy.run_path(str(DEMO / "make_documents.py"))
    assert (DEMO / "documents.jsonl").read_text(encoding="utf-8") == source["text"]()


def test_the_records_schema_is_that_of_the_objects_that_are_read() -> None:
    rows = map(json.loads, (DEMO / "documents.jsonl").read_text(encoding="utf-8").splitlines())
    bodies = [row["body"] for row in rows if row["custom_id"].startswith("record-")]
    record = runpy.run_path(str(DEMO / "run.py"))["Record"]
    schema = record.model_json_schema()
    for part in (schema, *schema["properties"].values()):
        part.pop("title")
    assert {json.dumps(body["structured_outputs"]["json"], sort_keys=True) for body in bodies} == {
        json.dumps({key: value for key, value in schema.items() if key != "description"}, sort_keys=True)
    }
    for body in bodies:
        record.model_validate_json(body["metadata"]["expected"])
