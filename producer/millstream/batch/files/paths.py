"""The paths of a batch run's files, and whether OUT can be written there.

OUT.jsonl             answers, as rows of the OpenAI Batch output format, in the order in which jobs end
OUT.errors.jsonl      rows of lines that got none
OUT.run.jsonl         the run's id, and which jobs it submitted: see RunFile
OUT.run.stdin         the input, where it came from standard input, until the run has ended
"""

from __future__ import annotations

from pathlib import Path

from millstream.batch.files.compressed import check_compression, compression_of
from millstream.errors import InvalidRequest


class RunPaths:
    """The paths beside one OUT. Raises InvalidRequest for an OUT without a name."""

    def __init__(self, out: Path) -> None:
        if not out.name:
            raise InvalidRequest("OUT", str(out), "names no file")
        self.out = out
        self.packing = compression_of(out)
        plain = out if self.packing is None else out.with_suffix("")
        self.rows = out if plain is out else out.with_name(f"{out.name}.part")  # where rows are appended
        self.errors = plain.with_suffix(".errors.jsonl")
        self.run_file = plain.with_suffix(".run.jsonl")
        self.spool = plain.with_suffix(".run.stdin")  # a copy of an input that can be read only once

    def check(self, *, begins: bool = True) -> None:
        """Raises InvalidRequest if OUT cannot be written, or has no run and none may begin."""
        folder = self.out.parent
        check_compression(self.packing)
        if self.out.is_dir():
            raise InvalidRequest("OUT", str(self.out), f"cannot be written: Is a directory: {self.out.name}")
        if self.out.exists() and not self.out.is_file():
            raise InvalidRequest("OUT", str(self.out), "is no regular file")
        if not folder.is_dir():
            problem = f"{folder} is no folder" if folder.exists() else f"the folder {folder} does not exist"
            raise InvalidRequest("OUT", str(self.out), f"{problem}; create it, or choose another file")
        if not begins and not self.run_file.exists():
            problem = f"is no run's output: there is no {self.run_file.name} beside it"
            raise InvalidRequest("OUT", str(self.out), problem)
