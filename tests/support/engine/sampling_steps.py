"""Steps that only draw: a sampler's plan from rows, and the plain reference for what it draws."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from millstream_worker.engine.brain.batch.plan import Plan, RowLoad, Sampled, TokenMasks, packed_plan
from millstream_worker.engine.protocol.request import SamplingSpec
from millstream_worker.engine.runner.sampling.numpy_chooser import NumpyChooser
from millstream_worker.engine.runner.sampling.sampler import Sampler

DEFAULT = SamplingSpec()
KINDS = ("usual", "flat", "peaked", "few values", "even", "mostly impossible", "alone")  # of logits


@dataclass(frozen=True, slots=True)
class Row:
    """One row that draws: its logits, what it has behind it, and the uniform number it draws with."""

    logits: NDArray[np.float32]
    spec: SamplingSpec = DEFAULT
    noise: float = 0.5
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()


def draw_plan(
    slots: list[int], drawn: list[int], noise: list[float], loads: tuple[RowLoad, ...] = ()
) -> Plan:
    """One decode segment per slot, each with one logit wanted; nothing else is filled in."""
    count = len(slots)
    plan = packed_plan(np.ones(count), np.ones(count), np.zeros((count, 1)), 1, samples=True)
    return replace(
        plan,
        loads=loads,
        row_slots=np.array(slots, np.int32),
        output_indices=np.array(drawn, np.int32),
        noise=np.array(noise, np.float64),
    )


def draw(
    rows: list[Row],
    slots: list[int] | None = None,
    sampler: Sampler | None = None,
    masks: TokenMasks | None = None,
) -> Sampled:
    """Load the rows and draw once for all of them together, in the given slots (default: 0, 1, 2, …)."""
    slots = slots or list(range(len(rows)))
    sampler = sampler or Sampler(len(rows[0].logits), max(slots) + 1, "cpu", NumpyChooser())
    plan = draw_plan(
        slots,
        [len(row.output) for row in rows],
        [row.noise for row in rows],
        tuple(RowLoad(slot, row.spec, row.prompt, row.output) for slot, row in zip(slots, rows, strict=True)),
    )
    for load in plan.loads:
        sampler.load(load)
    logits = torch.from_numpy(np.stack([row.logits for row in rows])).to(sampler.last_tokens.device)
    return sampler.collect(sampler.sample(logits, plan, masks))


def changed(row: Row) -> NDArray[np.float64]:
    """The row's logits with bias, penalties and the minimal length, one token after another."""
    spec, logits = row.spec, row.logits.astype(np.float64)
    for token, bias in spec.logit_bias:
        logits[token] += bias
    for token in set(row.prompt) | set(row.output):
        up = logits[token] > 0
        logits[token] = (
            logits[token] / spec.repetition_penalty if up else logits[token] * spec.repetition_penalty
        )
    for token in set(row.output):
        logits[token] -= spec.presence_penalty + spec.frequency_penalty * row.output.count(token)
    if len(row.output) < spec.min_tokens:
        logits[list(spec.end_ids)] = -np.inf
    return logits


def distribution(row: Row) -> NDArray[np.float64]:
    """The row's probabilities [vocabulary] after everything, by the definitions, in float64."""
    spec, logits = row.spec, changed(row)
    order = np.argsort(-logits, kind="stable")  # most likely first, equal ones by id
    if spec.temperature == 0:
        return np.eye(len(logits))[order[0]]
    ranked = np.exp((logits[order] - logits[order[0]]) / spec.temperature)
    if spec.top_k:
        ranked[spec.top_k :] = 0
    ranked /= ranked.sum()
    before = np.cumsum(ranked) - ranked
    ranked[(before >= spec.top_p) | (ranked < spec.min_p * ranked[0])] = 0
    probabilities = np.zeros(len(logits))
    probabilities[order] = ranked / ranked.sum()
    return probabilities


def logits_of(kind: str, rows: int, vocab: int, random: torch.Generator) -> torch.Tensor:
    """Of one of KINDS."""
    made = torch.randn(rows, vocab, generator=random)
    place = torch.randint(vocab, (rows, 1), generator=random)
    return {
        "usual": made * 3,
        "flat": made * 0.01,
        "peaked": made * 60,
        "few values": (made * 2).round(),
        "even": torch.zeros(rows, vocab) - 7,
        "mostly impossible": torch.where(made > 2, made, -torch.inf).scatter(1, place, 1.0),
        "alone": torch.full((rows, vocab), -torch.inf).scatter(1, place, -3.0),
    }[kind]
