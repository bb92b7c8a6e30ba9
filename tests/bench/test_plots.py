"""Tables, CSV files and pictures of curves."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from ops.bench.plots import Row, caption, markdown, write_csv

ROWS: list[Row] = [{"run": "a", "tokens/s": 12345.678, "share": 0.0123}, {"run": "b", "left": 3}]


def test_a_csv_file_has_every_column_and_holes(tmp_path: Path) -> None:
    write_csv(tmp_path / "new" / "rows.csv", ROWS)
    first, second = csv.DictReader((tmp_path / "new" / "rows.csv").read_text().splitlines())
    assert first == {"run": "a", "tokens/s": "12346", "share": "0.0123", "left": ""}
    assert second == {"run": "b", "tokens/s": "", "share": "", "left": "3"}


def test_the_same_rows_as_a_table() -> None:
    assert markdown(ROWS).splitlines() == [
        "| run | tokens/s | share | left |",
        "| --- | --- | --- | --- |",
        "| a | 12346 | 0.0123 |  |",
        "| b |  |  | 3 |",
    ]


def test_a_caption_has_the_command_that_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/some/where/experiment.py", "rows", "--model", "my model"])
    machine, command = caption("growth")
    assert "commit" in machine
    assert "cores" in machine
    assert command == "python -m ops.bench growth rows --model 'my model'"
