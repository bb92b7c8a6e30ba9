"""The part of a stored result that is missing in a token log without its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millstream.wire.messages.choices import OF_END, Choice, ChoiceDelta, Delta


def missing_deltas(choices: Iterable[Choice], read: Sequence[Delta]) -> tuple[ChoiceDelta, ...]:
    """For each choice, the delta from the content of `read` to the whole choice; none without a
    difference.
    """
    parts = [part for delta in read for part in delta.choices]
    return tuple(
        delta
        for choice in choices
        if (delta := _missing(choice, [part for part in parts if part.index == choice.index]))
    )


def _missing(choice: Choice, parts: Sequence[ChoiceDelta]) -> ChoiceDelta | None:
    characters = sum(len(part.text) for part in parts)
    tokens = sum(len(part.token_ids) for part in parts)
    thought = sum(len(part.reasoning_content) for part in parts)
    finished = any(part.finish_reason for part in parts)
    delta = ChoiceDelta(
        index=choice.index,
        text=choice.text[characters:],
        token_ids=choice.token_ids[tokens:],
        logprobs=choice.logprobs[tokens:] if choice.logprobs is not None else None,
        reasoning_content=choice.reasoning_content[thought:],
        **({} if finished else {name: getattr(choice, name) for name in OF_END}),
    )
    new = delta.text or delta.reasoning_content or delta.token_ids or delta.finish_reason
    return delta if new else None
