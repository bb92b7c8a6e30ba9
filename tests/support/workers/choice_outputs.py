"""Choices of a live job, fed token by token."""

from __future__ import annotations

from typing import Any

from millstream_worker.jobs.output import ChoiceOutput


def drawn(row: ChoiceOutput, ids: list[int], flushes: set[int]) -> list[dict[str, Any]]:
    """What is told as these tokens come one by one, with flushes after those places."""
    told = []
    for place, token in enumerate(ids):
        row.ids.append(token)
        if row.watched and row.feed():
            break
        if place in flushes and (delta := row.take()):
            told.append(delta)
    return told


def ended(row: ChoiceOutput) -> list[dict[str, Any]]:
    """By length, where it has not ended."""
    row.reason = row.reason or "length"
    told = []
    while delta := row.take():
        told.append(delta)
    return told


def texts_of(told: list[dict[str, Any]]) -> tuple[str, list[int]]:
    return "".join(part.get("text", "") for part in told), [
        token for part in told for token in part.get("token_ids", [])
    ]
