"""Holds conversations with a stand's model, and prints what was found."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from transformers import AutoTokenizer

from conformance.stands import Stand
from conformance.turns.asked_turns import Conversation
from conformance.turns.call_forms import HERMES, CallForm
from conformance.turns.turn_judge import TurnJudge
from conformance.watch.exchanges import post

TURNS = 500
AT_ONCE = 8
MOST_TOLD = 12  # kinds of faults
LEAST_CALLS = 30  # else the run shows nothing


def agent_turns(stand: Stand, form: CallForm = HERMES, turns: int = TURNS) -> bool:
    """True if no answer has a fault, and enough calls were made. `form`: of the calls of that model."""
    judge = TurnJudge(form, AutoTokenizer.from_pretrained(stand.checkpoint))
    with ThreadPoolExecutor(AT_ONCE) as threads:
        each = [turns // AT_ONCE + (place < turns % AT_ONCE) for place in range(AT_ONCE)]
        list(threads.map(lambda number: _hold(stand, judge, number, each[number]), range(AT_ONCE)))
    print(f"  {form.name}: {', '.join(f'{count} {what}' for what, count in judge.counts.items())}")
    print(f"  {len(judge.faults)} faults")
    for kind, count in Counter(kind_of(fault) for fault in judge.faults).most_common(MOST_TOLD):
        first = next(fault for fault in judge.faults if kind_of(fault) == kind)
        print(f"  fault, {count} times: {first}")
    return not judge.faults and judge.counts["whole calls among the tokens"] >= LEAST_CALLS


def kind_of(fault: str) -> str:
    """All that faults of one kind have in common: what comes before a value."""
    return fault.partition(":")[0].partition(" | ")[0]


def _hold(stand: Stand, judge: TurnJudge, number: int, turns: int) -> None:
    strict = not judge.form.by_parameter  # such a form keeps no bounds of texts
    short: dict[str, Any] = {}
    if judge.form.in_channels:  # else most answers are cut in their thoughts
        short = {"logit_bias": {judge.tokenizer.convert_tokens_to_ids("<|end|>"): 5}}
    conversation = Conversation(number, strict=strict)
    for turn in range(turns):
        asked = conversation.next_request() | short
        whole = post(stand.url, asked | {"return_token_ids": True})
        streamed = post(stand.url, asked | {"stream": True})
        choice = judge.judge(whole, streamed)
        if choice is None:
            conversation = Conversation(number + 1000 * (turn + 1), strict=strict)
        else:
            conversation.add(choice)
