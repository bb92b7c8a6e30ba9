"""Lines out of pieces of any size, and custom_ids that were seen."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from millstream.batch.rows.line_splitter import LineSplitter
from millstream.batch.rows.seen_ids import SeenIds

MOST = 5  # bytes of a line


@given(st.lists(st.binary(max_size=12) | st.sampled_from([b"\n", b"a\n", b"\xef\xbb\xbf"]), max_size=12))
@example([b"a\n\n  \t\r\nb\n"])
@example([b"\xef\xbb", b"\xbfa\r\nb"])
@example([b"x" * 6 + b"\n" + b"y" * 6])
@example([b"\n\n"])
def test_lines_are_those_of_the_whole(pieces: list[bytes]) -> None:
    whole = b"".join(pieces).split(b"\n")
    whole[0] = whole[0].removeprefix(b"\xef\xbb\xbf")
    wanted = [
        (number, None if len(line) > MOST else line)
        for number, line in enumerate(whole, 1)
        if len(line) > MOST or line.strip()
    ]
    splitter = LineSplitter(MOST)
    found = [line for piece in pieces for line in splitter.feed(piece)]
    found += splitter.end()
    assert [(line.number, line.data) for line in found] == wanted
    for line in found:
        rest = b"".join(pieces)[line.place :]
        assert (rest if line.number > 1 else rest.removeprefix(b"\xef\xbb\xbf")).startswith(line.data or b"")


def test_seen_ids_grow() -> None:
    seen = SeenIds()
    assert all(seen.add(f"row {number}") for number in range(5000))
    assert not any(seen.add(f"row {number}") for number in range(5000))
