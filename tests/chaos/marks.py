"""How one text, one token log or one reading differs from what it must be: pure functions, each answering
what is wrong in words, or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chaos.calls import told_of
from chaos.ledger import Ended, Entry, Reading
from millstream import State
from millstream.wire.messages.choices import Delta, calls_of
from millstream.wire.messages.codec import decode
from millstream.wire.messages.record import DELTA, END, MARKER
from millstream.wire.messages.script_replies import LogEntry

REPEATED = "repeated"  # in the words of a text that has something twice


def text_fault(text: str, expected: str, *, whole: bool) -> str:
    """`whole`: it must be the expected text, not only its beginning."""
    if text == expected or (not whole and expected.startswith(text)):
        return ""
    words = text.split()
    kind = "cut short" if expected.startswith(text) else "wrong"
    if len(set(words)) < len(words):
        kind = REPEATED
    return f"{kind}: {text!r:.300}, must be {expected!r:.300}"


def texts_fault(texts: Sequence[str], entry: Entry, state: State) -> str:
    """All choices of a job that ended so."""
    expected = entry.order.texts
    if state is State.COMPLETED and len(texts) != len(expected):
        return f"{len(texts)} choices, must be {len(expected)}"
    if len(texts) > len(expected):
        return f"{len(texts)} choices, at most {len(expected)} were asked for"
    whole = state is State.COMPLETED
    faults = [text_fault(text, must, whole=whole) for text, must in zip(texts, expected, strict=False)]
    return next((fault for fault in faults if fault), "")


def ended_fault(ended: Ended, entry: Entry) -> str:
    """What a caller was told."""
    if ended.state not in entry.allowed:
        code = f"{ended.code}: {ended.message}" if ended.message else ended.code
        return f"ended as {ended.state} ({code}), may be {', '.join(sorted(entry.allowed))}"
    fails = entry.order.fails
    if ended.state is State.FAILED and ended.code not in fails:
        return f"failed with {ended.code!r}, must be one of {', '.join(sorted(fails))}"
    undone = entry.shaken or entry.excused
    if entry.cancelled_at_once and ended.state is not State.CANCELLED and not undone:
        return f"ended as {ended.state}, and was cancelled before"
    if ended.tokens != ended.counted:
        return f"has {ended.tokens} tokens, and its usage says {ended.counted}"
    return texts_fault(ended.texts, entry, ended.state) or complete_fault(ended, entry)


def complete_fault(ended: Ended, entry: Entry) -> str:
    """Whether answers are said to be whole as they must be; one that was cut by its job's end is not."""
    expected = entry.order.complete or (None,) * len(entry.order.texts)
    if ended.state is State.COMPLETED and ended.complete != expected:
        return f"says complete {ended.complete}, must be {expected}"
    for text, must, said in zip(ended.texts, entry.order.texts, ended.complete, strict=False):
        if said and text != must:
            return f"says that {text!r:.300} is complete, and that is {must!r:.300}"
    return ""


def reading_fault(reading: Reading, entry: Entry, state: State | None) -> str:
    """`state`: the job's own, None where it is gone."""
    if not reading.over:
        return "never ended"
    if reading.error and not entry.excused:
        return f"ended with {reading.error}"
    if reading.state is not None and state not in (None, reading.state) and not entry.shaken:
        return f"said {reading.state}, and the job is {state}"
    if reading.rewinds and not (entry.shaken or entry.excused or entry.anew):
        return f"was told {reading.rewinds} times to rewind, and nothing was lost"
    count = len(entry.order.texts)
    seen = reading.transcript
    texts = [told_of(seen.text(choice), seen.tool_calls(choice)) for choice in range(count)]
    return texts_fault(texts, entry, reading.state or State.CANCELLED)


def log_fault(log: Sequence[LogEntry], *, ended: bool, lossy: bool) -> str:
    """Numbers without a gap over all attempts, attempts that only grow, one end at the end where it must have
    `ended`, one model's output. `lossy`: a marker may take entries back."""
    attempt, last, model = 0, 0, b""
    for place, entry in enumerate(log):
        match entry.kind:
            case "d" if (entry.attempt, entry.seq) != (attempt, last + 1):
                return f"{entry.cursor} comes after {attempt}-{last}"
            case "m" if entry.attempt <= attempt or entry.seq > last or (entry.seq < last and not lossy):
                return f"the marker {entry.cursor} comes after {attempt}-{last}"
            case "m" if model and entry.body and entry.body != model and entry.seq:
                return f"{entry.cursor} goes on with the output of another model"
            case "e" if place != len(log) - 1 or entry.seq != last + 1 or entry.attempt < attempt:
                return f"the end {entry.cursor} comes after {attempt}-{last}, at {place + 1} of {len(log)}"
        attempt, last = entry.attempt, entry.seq
        model = (entry.kind == MARKER and entry.body) or model
    if ended and (not log or log[-1].kind != END):
        return f"has no end marker after {attempt}-{last}"
    return ""


def log_texts(log: Iterable[LogEntry], choices: int) -> list[str]:
    """What the log says, rewinds applied; calls by their pieces, and not as an end tells them."""
    deltas: list[Delta] = []
    for entry in log:
        if entry.kind == MARKER:
            del deltas[entry.seq :]
        elif entry.kind == DELTA:
            deltas.append(decode(Delta, entry.body))
    parts = [part.model_copy(update={"finish_reason": None}) for delta in deltas for part in delta.choices]
    own = [[part for part in parts if part.index == choice] for choice in range(choices)]
    return [told_of("".join(part.text for part in mine), calls_of(mine)) for mine in own]
