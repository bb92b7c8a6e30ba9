"""Loads what rows are without until they are sent: the files that their images name, and large lines that are
sent once more.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from millstream.batch.files.input_file import ChangedInput, InputFile
from millstream.batch.media.media_reader import MediaReader
from millstream.batch.rows.batch_lines import BatchLine
from millstream.batch.rows.faults import LineFault
from millstream.batch.rows.line_rules import LineRules
from millstream.errors import InvalidRequest, MillstreamError
from millstream.wire.messages.codec import MAX_MESSAGE_BYTES
from millstream.wire.messages.images import Image

LIGHT_BYTES = 64 * 1024  # of a row: a larger one is not held while its job is under way


class RowLoader:
    """Close it at the end. `source`: the input."""

    def __init__(self, source: Path, rules: LineRules) -> None:
        self._source, self._rules = source, rules
        self._media = MediaReader(rules.media) if rules.media else None

    async def close(self) -> None:
        if self._media is not None:
            await self._media.close()

    async def load(self, row: BatchLine) -> BatchLine | MillstreamError:
        """The row as it is sent, or what is wrong with it now. Raises what is no row's fault: InvalidRequest
        for an input that cannot be read any more, MachineProblem.
        """
        if not row.files:
            return await asyncio.to_thread(self._again, row)
        try:
            return await self._with_images(row)
        except InvalidRequest as error:
            return error

    @staticmethod
    def with_light(row: BatchLine, place: int) -> BatchLine:
        """The row of a line that begins at this byte, as it is read first."""
        if row.size <= LIGHT_BYTES or row.files:
            return row
        light = replace(row, requests=(), encoded=(), size=0, late_bytes=row.size, place=place)
        return replace(row, light=light)

    async def _with_images(self, row: BatchLine) -> BatchLine:
        assert self._media is not None, "there are files below a folder only"
        [request] = row.requests
        images, left = list(request.images), MAX_MESSAGE_BYTES
        for place, page in row.files.items():
            data = await self._media.read(page)
            left -= len(data)
            if left < 0:
                problem = (
                    f"the files of a line may have {MAX_MESSAGE_BYTES:,} bytes; send fewer or smaller ones"
                )
                raise InvalidRequest(page.where, page.name, problem)
            images[place] = Image(data=data)
        whole = request.model_copy(update={"images": tuple(images)})
        return replace(row, requests=(whole,), late_bytes=MAX_MESSAGE_BYTES - left, light=row)

    def _again(self, row: BatchLine) -> BatchLine | InvalidRequest:
        try:
            with InputFile(self._source) as lines:
                line = lines.line_at(row.place, row.line)
            if line is not None:
                found = self._rules.row_of(line, *self._rules.fields_of(line))
                if found.digest == row.digest:
                    return replace(row, requests=found.requests, encoded=found.encoded, light=row)
        except (LineFault, ChangedInput):
            pass
        problem = "the line has changed while the run was under way"
        return InvalidRequest("messages", self._source.name, problem)
