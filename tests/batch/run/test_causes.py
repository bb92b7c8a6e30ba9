"""Error rows counted by what is wrong with them."""

from __future__ import annotations

from typing import Any

from millstream.batch.run.error_counts import MAX_CAUSES, Cause, Causes


def row(line: int, message: str, code: str = "invalid_field", param: str | None = None) -> dict[str, Any]:
    return {
        "response": {"status_code": 500, "request_id": f"0-{line}"},
        "error": {"code": code, "message": message, "param": param, "line": line},
    }


def test_rows_of_one_code_and_field_are_one_cause() -> None:
    causes = Causes()
    causes.add(row(1, "too slow", "timeout"))
    for line in (2, 3, 4):
        causes.add(row(line, f"line {line}: body.n: give a number", param="body.n"))
    for line in (5, 6):
        param = f"body.messages[{line}].role"
        causes.add(row(line, f"messages[{line}].role: unlike {line}", param=param))
    assert causes.commonest() == (
        Cause(3, "body.n: give a number", alike=True),
        Cause(2, "messages[5].role: unlike 5", alike=False),
        Cause(1, "timeout: too slow", alike=True),
    )


def test_a_file_of_ever_new_fields_takes_bounded_memory() -> None:
    causes = Causes()
    for line in range(2 * MAX_CAUSES):
        name = "".join(chr(ord("a") + int(digit)) for digit in str(line))
        causes.add(row(line, f"{name}: no", param=name))
    commonest = causes.commonest()
    assert len(commonest) == MAX_CAUSES + 1
    assert (commonest[0].count, commonest[0].alike) == (MAX_CAUSES, False)
