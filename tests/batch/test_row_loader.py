"""Lines that are read a second time, when their jobs are sent again."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.workers.answering_worker import completion, write_lines

from millstream import InvalidRequest
from millstream.batch.files.input_file import InputFile
from millstream.batch.row_loader import RowLoader
from millstream.batch.rows.batch_lines import BatchLine
from millstream.batch.run.run_options import RunOptions


async def test_an_input_that_is_away_is_no_fault_of_a_line(tmp_path: Path) -> None:
    """A line that is another one now has that as its error."""
    source, options = tmp_path / "in.jsonl", RunOptions()
    write_lines(source, [completion("large", "x" * 100_000)])
    with InputFile(source) as lines:
        [one] = lines
    light = RowLoader.with_light(options.row_of(one, *options.fields_of(one)), one.place).light
    assert light is not None
    late = RowLoader(source, options)
    assert isinstance(await late.load(light), BatchLine)
    write_lines(source, [completion("large", "another")])
    refused = await late.load(light)
    assert isinstance(refused, InvalidRequest)
    assert refused.problem == "the line has changed while the run was under way"
    source.unlink()
    with pytest.raises(InvalidRequest, match="IN: cannot be read: No such file"):
        await late.load(light)
