"""Finds the form in which a chat template writes calls of functions, by what it makes of two."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from millstream_worker.engine.grammars.calls.call_form import HARMONY, CallForm, shared_start

PROBE_ID = "call00001"  # of nine letters and digits: some templates take no other
CALLED = "probe_call"
ARGUMENTS = {"probe_key": 7301, "probe_text": "probe_value"}
_NEXT = "probe_next"
_WRITTEN = re.compile(
    r'(?P<begin>.*?)probe_call(?P<middle>.*?)\{"probe_key"(?P<key_separator>:\s*)7301'
    r'(?P<item_separator>,\s*)"probe_text"(?P=key_separator)'
    r'"probe_value"\}(?P<tail>.*)',
    re.DOTALL,
)
_BY_PARAMETER = re.compile(
    r"(?P<begin>.*?)probe_call(?P<middle>.*?)(?P<key><[^<\n]*?)probe_key(?P<value>.*?)7301(?P<after>.*?)"
    r"(?P=key)probe_text(?P=value)probe_value(?P=after)(?P<tail>.*)",
    re.DOTALL,
)
_ID = re.compile(rf'(,\s*"id":\s*"{PROBE_ID}"|\[CALL_ID\]{PROBE_ID})')
_FEWEST = 4  # characters by which an answer that is a call is told from text
# What stands in a call whose form is not built, and the form's name.
_OTHERS = {
    "<|tool_call>call:": "Gemma 4's",
    "<|tool_call_argument_begin|>": "Kimi's",
    "probe_call(": "calls in Python, as LFM2",
}

Turn = dict[str, Any]
MakeTurn = Callable[[Sequence[Turn]], Turn]
Show = Callable[[Turn], str]


def call_of(own_id: str, name: str, arguments: object) -> Turn:
    """Returns a call as templates get it."""
    return {"id": own_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def form_of(show: Show, calling: MakeTurn, answer: Turn, arguments: object) -> CallForm | str:
    """Returns the form; else, in words, what the template writes instead. `show` renders a turn at the end of
    a conversation; `calling` makes the turn of some calls; `answer`: one that only says "probe_answer".
    """
    before, said, behind = show(answer).partition("probe_answer")
    first, second = (call_of(PROBE_ID, name, arguments) for name in (CALLED, _NEXT))
    one, two = (_own_part(show(calling(calls)), before) for calls in ([first], [first, second]))
    for mark, name in _OTHERS.items():
        if mark in one:
            return name
    written = _ID.sub("", one)
    found = _WRITTEN.fullmatch(written) or _BY_PARAMETER.fullmatch(written) if said else None
    if found is not None and found["begin"].endswith("to=functions."):
        separators = {name: found[name] for name in ("key_separator", "item_separator")}
        return replace(HARMONY, **separators)
    if found is not None and found["tail"].endswith(behind):
        texts = found.groupdict()
        end = texts.pop("tail").removesuffix(behind)
        texts["begin"] = texts["begin"].lstrip()
        form = CallForm(**texts, end=end, joint=_joint(_ID.sub("", two), found))
        if _is_sound(form):
            return form
    return f"one unknown here: {one[:60] or 'nothing'}"


def _is_sound(form: CallForm) -> bool:
    """False for texts that a model would not write around any calls: those of the probe, a thought, or a
    count of calls; or that would not tell a call from text.
    """
    whole = "\n".join(form.literals)
    is_told = bool(form.tag) or len(form.begin) >= _FEWEST
    has_count = re.search(r"\d", form.middle + form.joint + form.end) is not None
    is_of_probe = "probe_" in whole or PROBE_ID in whole
    return (
        is_told
        and bool(form.middle or form.key)
        and not (is_of_probe or has_count or "think" in whole.lower())
    )


def _joint(two: str, one: re.Match[str]) -> str:
    """Returns the text between the arguments of a call and the name of the next; empty if there is none."""
    head = one[0].removesuffix(one["tail"])
    joint, found, rest = two.removeprefix(head).partition(_NEXT)
    as_first = head.partition(CALLED)[2] + one["tail"]
    return joint if found and two.startswith(head) and rest == as_first else ""


def _own_part(text: str, before: str) -> str:
    """The text without what stands before an answer's, and with the whole of a tag that begins alike."""
    shared = text[: shared_start(text, before)]
    begun = max(shared.rfind("<"), shared.rfind("["))
    inside = begun >= 0 and not re.search(r"[>\]\s]", shared[begun:])
    return text[begun if inside else len(shared) :]
