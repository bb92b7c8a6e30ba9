"""What stands on a terminal after a program wrote to it: as much of one as progress bars need."""

from __future__ import annotations

import re

_PIECES = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


def screen(written: str, columns: int) -> list[str]:
    """Its lines, without spaces at their ends."""
    lines: list[str] = [""]
    row = column = 0
    first = lines, row, column
    for number, command, control, text in _PIECES.findall(written):
        if command == "A":
            row = max(0, row - int(number or 1))
        elif command == "H":
            row = column = 0
        elif command + number == "h?1049":  # another screen, as long as until "l"
            first, lines, row, column = (lines, row, column), [""], 0, 0
        elif command + number == "l?1049":
            lines, row, column = first
        elif command == "K":
            assert number == "2", f"unknown: ESC[{number}K"
            lines[row] = ""
        elif control == "\r":
            column = 0
        elif control == "\n":
            row, column = row + 1, 0
        while len(lines) <= row:
            lines.append("")
        while text:
            if column == columns:  # a line that is full goes on in the next one
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            piece, text = text[: columns - column], text[columns - column :]
            after = column + len(piece)
            lines[row] = lines[row].ljust(column)[:column] + piece + lines[row][after:]
            column = after
    return [line.rstrip() for line in lines]
