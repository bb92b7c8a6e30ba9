"""From logits to tokens, on the device: penalties, bias, temperature, filters, one draw per wanted logit.

Owns the sampling state of the rows in the batch, by slot. What a row draws depends on its own logits,
settings, history and noise only, never on its slot or on the rows around it. Only `collect` waits for the
device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millstream_worker.engine.brain.plan import Drawn, Plan, RowLoad
from millstream_worker.engine.runner import sampling_settings
from millstream_worker.engine.runner.sampling_bias import SlotBias
from millstream_worker.engine.runner.sampling_draw import Filters, draw_by_id, draw_by_rank, weigh
from millstream_worker.engine.runner.sampling_logprobs import LogprobTensors, logprobs_of
from millstream_worker.engine.runner.sampling_penalties import Penalties
from millstream_worker.engine.runner.sampling_settings import Settings, Way
from millstream_worker.engine.runner.transfer import to_device, to_host

Slots = NDArray[np.int32]

# Rows x vocabulary worked on at a time: what the caches of a CPU hold, what memory of a GPU can be spared.
PIECE_ELEMENTS = {"cpu": 2**18, "cuda": 2**24}


@dataclass(frozen=True, slots=True, eq=False)
class DrawnTensors:
    """One step's draws. What the host wants is on its way to it."""

    tokens: Tensor  # [L] int64, on the device
    tokens_host: Tensor
    broken_host: Tensor  # [L] bool
    logprobs_host: LogprobTensors | None
    copied: torch.cuda.Event | None  # passed when the host's copies are there; None: they are


class Sampler:
    """Load a row when it enters the batch, then draw at most one token per row and step."""

    def __init__(self, vocab_size: int, max_rows: int, device: torch.device | str) -> None:
        device = torch.device(device)
        self.last_tokens = torch.zeros(max_rows, dtype=torch.int64, device=device)  # by slot
        self._device = device
        self._vocab_size = vocab_size
        self._piece_rows = max(1, PIECE_ELEMENTS[device.type] // vocab_size)
        self._settings = sampling_settings.empty(max_rows)
        self._penalties = Penalties(vocab_size, max_rows, device)
        self._bias = SlotBias(vocab_size, max_rows, device)
        self._ends = SlotBias(vocab_size, max_rows, device)

    @torch.inference_mode()
    def load(self, load: RowLoad) -> None:
        """A row enters the batch at `load.slot`, for the first time or again."""
        spec, slot = load.sampling, load.slot
        settings = sampling_settings.settings_of(spec, self._vocab_size)
        self._settings[slot] = settings
        if sampling_settings.penalised(settings):
            self._penalties.load(slot, load.prompt, load.output)
        else:
            self._penalties.unload(slot)
        self._bias.load(slot, spec.logit_bias)
        self._ends.load(slot, [(token, -torch.inf) for token in spec.end_ids] if spec.min_tokens else [])

    @torch.inference_mode()
    def draw(self, logits: Tensor, plan: Plan) -> DrawnTensors:
        """One token per row of `logits` [L, vocabulary], which stay as they are. Loads come first."""
        slots = plan.row_slots[plan.logit_segments]
        settings = self._settings[slots]
        logits = logits.float()
        changed = self._change(logits, slots, settings, plan.output_indices)
        broken = ~changed.amax(-1).isfinite()
        tokens = self._choose(changed, settings, plan.noise).masked_fill_(broken, 0)
        self._remember(tokens, slots, settings)
        asked = np.flatnonzero(settings["logprobs"])
        logprobs = None
        if len(asked):
            counts = settings["top_logprobs"][asked]
            logprobs = logprobs_of(logits, tokens, asked, counts, self._there(asked)).map(to_host)
        return DrawnTensors(tokens, to_host(tokens), to_host(broken), logprobs, self._copied())

    def collect(self, drawn: DrawnTensors) -> Drawn:
        """The step's tokens as host values; waits for that step, not for one launched after it."""
        if drawn.copied is not None:
            drawn.copied.synchronize()
        broken = tuple(np.flatnonzero(drawn.broken_host.numpy()).tolist())
        logprobs = drawn.logprobs_host.values() if drawn.logprobs_host else {}
        sound = {index: values for index, values in logprobs.items() if index not in broken}
        return Drawn(drawn.tokens_host.numpy().astype(np.int32), sound, broken)

    def _change(self, logits: Tensor, slots: Slots, settings: Settings, drawn: NDArray[np.int32]) -> Tensor:
        """Logits with bias, penalties and minimal lengths applied; `drawn` [L]: tokens drawn before."""
        biased = settings["biased"].any()
        penalised = np.flatnonzero(sampling_settings.penalised(settings))
        short = drawn < settings["min_tokens"]
        if not (biased or len(penalised) or short.any()):
            return logits
        logits = logits.clone()
        index = self._there(slots)
        if biased:
            self._bias.add(logits, index)
        for members in self._pieces(penalised):
            rows = self._there(members)
            histories = self._there(self._penalties.histories(slots[members]))
            amounts = self._there(sampling_settings.penalties(settings[members]))
            logits[rows] = self._penalties.apply(logits[rows], histories, amounts)
        if short.any():
            self._ends.add(logits, index, only=self._there(short))
        return logits

    def _choose(self, logits: Tensor, settings: Settings, noise: NDArray[np.float64]) -> Tensor:
        """Tokens [L], each group of rows in the cheapest way that gives its answer."""
        tokens = torch.empty(len(logits), dtype=torch.int64, device=self._device)
        for way, members in sampling_settings.ways(settings, self._vocab_size):
            for rows in self._pieces(members):
                index = self._there(rows)
                part = logits if len(rows) == len(logits) else logits[index]
                tokens[index] = self._draw(part, way, settings[rows], noise[rows])
        return tokens

    def _draw(self, logits: Tensor, way: Way, settings: Settings, noise: NDArray[np.float64]) -> Tensor:
        if way is Way.GREEDY:
            return logits.argmax(-1)
        columns = self._there(sampling_settings.columns(settings, noise))[..., None]  # [4, M, 1] float64
        temperature, top_p, min_p, uniform = columns
        weights = weigh(logits, temperature.float())
        if way is Way.BY_ID:
            return draw_by_id(weights, min_p, uniform)
        top_k = self._there(settings["top_k"])[:, None]
        return draw_by_rank(weights, Filters(top_k, top_p, min_p), uniform, most=int(settings["top_k"].max()))

    def _remember(self, tokens: Tensor, slots: Slots, settings: Settings) -> None:
        self.last_tokens[self._there(slots)] = tokens
        penalised = np.flatnonzero(sampling_settings.penalised(settings))
        if len(penalised):
            histories = self._there(self._penalties.histories(slots[penalised]))
            self._penalties.count(histories, tokens[self._there(penalised)])

    def _pieces(self, rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """The rows, so many at a time."""
        for start in range(0, len(rows), self._piece_rows):
            yield rows[start : start + self._piece_rows]

    def _there(self, array: NDArray[Any]) -> Tensor:
        return to_device(array, self._device)

    def _copied(self) -> torch.cuda.Event | None:
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event
