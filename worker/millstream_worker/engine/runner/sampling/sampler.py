"""From logits to tokens, on the device: penalties, bias, temperature, filters, one draw per wanted logit.

Owns the sampling state of the rows in the batch, by slot. What a row gets depends on its own logits,
settings, history and noise only, never on its slot or on the rows around it. Only `collect` waits for the
device.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan, RowLoad, Sampled, TokenMasks
from millstream_worker.engine.runner.device.transfer import to_device
from millstream_worker.engine.runner.sampling import slot_settings
from millstream_worker.engine.runner.sampling.bias import SlotBias
from millstream_worker.engine.runner.sampling.chooser import Candidates, Chooser, Rows
from millstream_worker.engine.runner.sampling.logprobs import logprobs_of
from millstream_worker.engine.runner.sampling.penalties import Penalties
from millstream_worker.engine.runner.sampling.sampled_tensors import SampledTensors, keep
from millstream_worker.engine.runner.sampling.slot_settings import Settings

Slots = NDArray[np.int32]

# Rows x vocabulary worked on at a time: what the caches of a CPU hold, what memory of a GPU can be spared.
PIECE_ELEMENTS = {"cpu": 2**18, "cuda": 2**24}


class Sampler:
    """Load a row when it enters the batch, then sample at most one token per row and step."""

    def __init__(self, vocab_size: int, max_rows: int, device: torch.device | str, chooser: Chooser) -> None:
        device = torch.device(device)
        self.last_tokens = torch.zeros(max_rows, dtype=torch.int64, device=device)  # by slot
        self._chooser = chooser
        self._device = device
        self._vocab_size = vocab_size
        self._piece_rows = max(1, PIECE_ELEMENTS[device.type] // vocab_size)
        self._settings = slot_settings.empty(max_rows)
        self._plain = np.zeros(max_rows, np.bool_)
        self._penalties = Penalties(vocab_size, max_rows, device)
        self._bias = SlotBias(vocab_size, max_rows, device)
        self._ends = SlotBias(vocab_size, max_rows, device)

    @torch.inference_mode()
    def load(self, load: RowLoad) -> None:
        """A row enters the batch at `load.slot`, for the first time or again."""
        spec, slot = load.sampling, load.slot
        settings = slot_settings.settings_of(spec, self._vocab_size)
        self._settings[slot] = settings
        self._plain[slot] = slot_settings.plain(settings)
        if slot_settings.penalised(settings):
            self._penalties.load(slot, load.prompt, load.output)
        else:
            self._penalties.unload(slot)
        self._bias.load(slot, spec.logit_bias)
        self._ends.load(slot, [(token, -torch.inf) for token in spec.end_ids] if spec.min_tokens else [])

    @torch.inference_mode()
    def sample(self, logits: Tensor, plan: Plan, masks: TokenMasks | None = None) -> SampledTensors | Sampled:
        """Sample one token per row of `logits` [L, vocabulary], of any floating dtype. What
        `masks` forbid may become -inf in place. Rows must be loaded; `collect` reads the result."""
        slots = plan.row_slots[plan.logit_segments]
        if self._plain[slots].all():
            return self._chooser.sample_greedily(logits, masks, slots, self.last_tokens)
        own = logits  # the model's, of which log-probabilities are told
        settings = self._settings[slots]
        if masks is not None:
            if settings["logprobs"].any():
                own = logits.clone()
            self._chooser.mask(logits, masks)
        lengths = plan.output_indices

        def change(part: Tensor, rows: Rows) -> None:
            self._change(part, slots[rows], settings[rows], lengths[rows])

        changed = _changed(settings, lengths)
        rows = Candidates(logits, settings, plan.noise, changed, change, self._piece_rows)
        tokens, non_finite = self._chooser.choose(rows)
        tokens.masked_fill_(non_finite, 0)
        keep(tokens, slots, self.last_tokens)
        self._count(tokens, slots, settings)
        asked = np.flatnonzero(settings["logprobs"])
        if not len(asked):
            return SampledTensors.sent(tokens, non_finite)
        counts = settings["top_logprobs"][asked]
        return SampledTensors.sent(
            tokens, non_finite, logprobs_of(own, tokens, asked, counts, self._piece_rows)
        )

    def collect(self, sampled: SampledTensors | Sampled) -> Sampled:
        """The step's tokens as host values; waits for that step, not for one launched after it."""
        return sampled if isinstance(sampled, Sampled) else sampled.arrived()

    def _change(self, logits: Tensor, slots: Slots, settings: Settings, lengths: NDArray[np.int32]) -> None:
        """Apply bias, penalties and minimal lengths to float32 logits [M, V] in place."""
        index = to_device(slots, self._device)
        self._bias.add(logits, index)
        penalised = np.flatnonzero(slot_settings.penalised(settings))
        if len(penalised):
            histories = to_device(self._penalties.histories(slots[penalised]), self._device)
            amounts = to_device(slot_settings.penalties(settings[penalised]), self._device)
            self._penalties.apply(logits, to_device(penalised, self._device), histories, amounts)
        short = lengths < settings["min_tokens"]
        if short.any():
            self._ends.add(logits, index, only=to_device(short, self._device))

    def _count(self, tokens: Tensor, slots: Slots, settings: Settings) -> None:
        penalised = np.flatnonzero(slot_settings.penalised(settings))
        if len(penalised):
            histories = to_device(self._penalties.histories(slots[penalised]), self._device)
            self._penalties.count(histories, tokens[to_device(penalised, self._device)])


def _changed(settings: Settings, lengths: NDArray[np.int32]) -> NDArray[np.bool_]:
    """[L] the rows whose logits are not taken as they are; `lengths` [L] of the outputs so far."""
    changed: NDArray[np.bool_] = (
        settings["biased"] | slot_settings.penalised(settings) | (lengths < settings["min_tokens"])
    )
    return changed
