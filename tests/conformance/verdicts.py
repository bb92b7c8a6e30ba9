"""The judgement of our answers to the table, by those of vLLM, if it was there, and by the page *Clients*."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from conformance.exchange import Answer
from conformance.reading import Sign, is_named, names, sign_of
from conformance.requests.rows import Row


def faults(
    ours: Mapping[Row, Answer], theirs: Mapping[Row, Answer] | None, listed: Set[str]
) -> Iterator[str]:
    """One line each. `theirs` None: vLLM was not there."""
    refused = set()
    for row, answer in ours.items():
        if answer.status == 200:
            if not is_named(row, answer.ignored) and sign_of(row) in (Sign.NONE, Sign.IGNORED):
                yield f"{row.path} {row.name}: taken without effect, and no header names it"
            continue
        refused.add(row.name)
        said = f"{answer.status} {answer.message[:160]}"
        if answer.status not in range(400, 500):
            yield f"{row.path} {row.name}: no refusal: {said}"
        elif not names(row, answer.param, answer.message):
            yield f"{row.path} {row.name}: the error does not name the field: {said}"
        if row.name not in listed:
            yield f"{row.path} {row.name}: {_by(row, theirs)}, and the page does not name it: {said}"
    for name in sorted(listed - refused):
        yield f"{name}: the page says that it is refused, and it is answered"


def _by(row: Row, theirs: Mapping[Row, Answer] | None) -> str:
    if theirs is None:
        return "it is refused"
    return "vLLM answers it" if theirs[row].status == 200 else "it is refused, by vLLM too"
