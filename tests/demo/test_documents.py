"""The demo's documents: as their source says, and accepted by the batch reader to the last line."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

from millstream.batch.rows.batch_lines import custom_id_of, parse, read_row
from millstream.wire.keys import Lane

DEMO = Path(__file__).parents[2] / "ops" / "demo"


def test_the_file_is_what_its_source_writes() -> None:
    source = runpy.run_path(str(DEMO / "make_documents.py"))
    assert (DEMO / "documents.jsonl").read_text(encoding="utf-8") == source["text"]()


def test_every_document_is_a_good_line_with_an_expected_answer() -> None:
    lines = (DEMO / "documents.jsonl").read_bytes().splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        fields = parse(line)
        rows.append(read_row(number, custom_id_of(fields), fields, lane=Lane.BATCH, tenant=""))
    assert len({row.custom_id for row in rows}) == len(rows) >= 32
    assert all(row.expected for row in rows)
    assert not any(row.unknown for row in rows)


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


def test_the_documents_of_a_desk_share_a_long_beginning() -> None:
    prompts: dict[str, list[str]] = {}
    for line in (DEMO / "documents.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        prompts.setdefault(row["custom_id"].partition("-")[0], []).append(row["body"]["prompt"])
    for texts in prompts.values():
        shared = next(i for i, letters in enumerate(zip(*texts, strict=False)) if len(set(letters)) > 1)
        assert shared > 0.6 * min(map(len, texts))
