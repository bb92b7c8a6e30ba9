"""JSON for readers of lines."""

from __future__ import annotations

import json
import sys

from millstream.json_bytes import json_bytes


def test_no_character_in_it_ends_a_line_for_any_reader() -> None:
    every = "".join(map(chr, range(0x3000))) + "🙂"
    ends = [letter for letter in map(chr, range(sys.maxunicode)) if len(f"a{letter}b".splitlines()) > 1]
    assert set(ends) <= set(every)
    written = json_bytes({every: [every]})
    assert len(written.decode().splitlines()) == 1
    assert json.loads(written) == {every: [every]}


def test_bytes_that_are_no_text_are_written_and_read() -> None:
    path = b"a\xff".decode("utf-8", "surrogateescape")
    assert json.loads(json_bytes([path, "é"])) == [path, "é"]
    assert json_bytes("é").decode() == '"é"'
