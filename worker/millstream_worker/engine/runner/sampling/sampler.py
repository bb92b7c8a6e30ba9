"""From logits to tokens, on the device: penalties, bias, temperature, filters, one draw per wanted logit.

Owns the sampling state of the rows in the batch, by slot. What a row gets depends on its own logits,
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

from millstream_worker.engine.brain.batch.plan import Plan, RowLoad, Sampled, TokenMasks
from millstream_worker.engine.runner.device.transfer import to_device, to_host, together
from millstream_worker.engine.runner.native.library import Library
from millstream_worker.engine.runner.sampling import draw_cpu, slot_settings
from millstream_worker.engine.runner.sampling.bias import SlotBias
from millstream_worker.engine.runner.sampling.draw import draw_by_id, draw_by_rank, weigh
from millstream_worker.engine.runner.sampling.greedy import NativeGreedy, most_likely
from millstream_worker.engine.runner.sampling.logprobs import LogprobTensors, logprobs_of
from millstream_worker.engine.runner.sampling.masking import Masking
from millstream_worker.engine.runner.sampling.penalties import Penalties
from millstream_worker.engine.runner.sampling.slot_settings import SamplingMethod, Settings
from millstream_worker.engine.runner.sampling.triton_draws import TritonDraws

Slots = NDArray[np.int32]

# Rows x vocabulary worked on at a time: what the caches of a CPU hold, what memory of a GPU can be spared.
PIECE_ELEMENTS = {"cpu": 2**18, "cuda": 2**24}


@dataclass(frozen=True, slots=True, eq=False)
class SampledTensors:
    """One step's samples. Copies to the host have been started."""

    tokens: Tensor  # [L] int64, on the device
    tokens_host: Tensor
    non_finite_host: Tensor  # [L] bool
    logprobs_host: LogprobTensors | None
    copied: torch.cuda.Event | None  # passed when the host's copies are there; None: they are


class Sampler:
    """Load a row when it enters the batch, then sample at most one token per row and step."""

    def __init__(
        self,
        vocab_size: int,
        max_rows: int,
        device: torch.device | str,
        library: Library | None = None,
        draws: TritonDraws | None = None,
    ) -> None:
        device = torch.device(device)
        self.last_tokens = torch.zeros(max_rows, dtype=torch.int64, device=device)  # by slot
        self._native = NativeGreedy(library, max_rows) if library else None
        self._draws = draws
        self._masking = Masking(library, draws)
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
            return self._sample_plainly(logits, slots, masks)
        own = logits  # the model's, of which log-probabilities are told
        if masks is not None:
            if self._settings["logprobs"][slots].any():
                own = logits.clone()
            self._masking.apply(logits, masks)
        settings = self._settings[slots]
        tokens, non_finite = self._choose(logits, slots, settings, plan)
        tokens.masked_fill_(non_finite, 0)
        self._keep(tokens, slots)
        self._count(tokens, slots, settings)
        asked = np.flatnonzero(settings["logprobs"])
        if not len(asked):
            return self._sent(tokens, non_finite)
        counts = settings["top_logprobs"][asked]
        return self._sent(tokens, non_finite, logprobs_of(own, tokens, asked, counts, self._piece_rows))

    def collect(self, sampled: SampledTensors | Sampled) -> Sampled:
        """The step's tokens as host values; waits for that step, not for one launched after it."""
        if isinstance(sampled, Sampled):
            return sampled
        if sampled.copied is not None:
            sampled.copied.synchronize()
        non_finite = tuple(sampled.non_finite_host.numpy().nonzero()[0].tolist())
        logprobs = sampled.logprobs_host.values() if sampled.logprobs_host else {}
        sound = {index: values for index, values in logprobs.items() if index not in non_finite}
        return Sampled(sampled.tokens_host.numpy().astype(np.int32), sound, non_finite)

    def _sample_plainly(
        self, logits: Tensor, slots: Slots, masks: TokenMasks | None
    ) -> SampledTensors | Sampled:
        """Sample rows that are greedy, without penalties, bias or log-probabilities."""
        if self._native is None or not self._native.takes(logits):
            if masks is not None:
                self._masking.apply(logits, masks)
            tokens, non_finite = most_likely(logits)
            self._keep(tokens, slots)
            return self._sent(tokens, non_finite)
        chosen, unsound = self._native.most_likely(logits, masks)
        self.last_tokens.numpy()[slots] = chosen
        return Sampled(chosen.astype(np.int32), {}, tuple(unsound.nonzero()[0].tolist()))

    def _choose(self, logits: Tensor, slots: Slots, settings: Settings, plan: Plan) -> tuple[Tensor, Tensor]:
        """Tokens [L] and which rows are not finite [L], each group of rows in the cheapest way that gives its
        answer."""
        changed = self._changed(settings, plan.output_indices)
        tokens = torch.empty(len(logits), dtype=torch.int64, device=self._device)
        non_finite = torch.empty(len(logits), dtype=torch.bool, device=self._device)
        left = np.ones(len(logits), np.bool_)
        if self._draws is not None:
            left = changed | slot_settings.greedy(settings)
            rows = np.flatnonzero(~left)
            if len(rows):
                drawn = self._launch(self._draws, logits, rows, settings[rows], plan.noise[rows])
                if len(rows) == len(logits):
                    return drawn
                index = self._there(rows)
                tokens[index], non_finite[index] = drawn
        for method, members in slot_settings.methods(settings, self._vocab_size):
            for rows in self._pieces(members[left[members]]):
                index = self._there(rows)
                part = logits.index_select(0, index).float()
                if changed[rows].any():
                    self._change(part, slots[rows], settings[rows], plan.output_indices[rows])
                tokens[index], non_finite[index] = self._draw(part, method, settings[rows], plan.noise[rows])
        return tokens, non_finite

    def _changed(self, settings: Settings, lengths: NDArray[np.int32]) -> NDArray[np.bool_]:
        """[L] the rows whose logits are not taken as they are; `lengths` [L] of the outputs so far."""
        changed: NDArray[np.bool_] = (
            settings["biased"] | slot_settings.penalised(settings) | (lengths < settings["min_tokens"])
        )
        return changed

    def _change(self, logits: Tensor, slots: Slots, settings: Settings, lengths: NDArray[np.int32]) -> None:
        """Apply bias, penalties and minimal lengths to float32 logits [M, V] in place."""
        index = self._there(slots)
        self._bias.add(logits, index)
        penalised = np.flatnonzero(slot_settings.penalised(settings))
        if len(penalised):
            histories = self._there(self._penalties.histories(slots[penalised]))
            amounts = self._there(slot_settings.penalties(settings[penalised]))
            self._penalties.apply(logits, self._there(penalised), histories, amounts)
        short = lengths < settings["min_tokens"]
        if short.any():
            self._ends.add(logits, index, only=self._there(short))

    def _draw(
        self, logits: Tensor, method: SamplingMethod, settings: Settings, noise: NDArray[np.float64]
    ) -> tuple[Tensor, Tensor]:
        """Tokens [M] of float32 logits [M, V], and which of them mean nothing."""
        if method is SamplingMethod.GREEDY:
            return most_likely(logits, self._native)
        if self._draws is not None:
            return self._launch(self._draws, logits, np.arange(len(logits)), settings, noise)
        peak = logits.amax(-1)
        non_finite = peak.isfinite().logical_not_()
        if self._device.type == "cpu":
            draw = draw_cpu.draw_by_id if method is SamplingMethod.BY_ID else draw_cpu.draw_by_rank
            return torch.from_numpy(draw(logits, peak, settings, noise)), non_finite
        columns = self._there(slot_settings.columns(settings, noise))[..., None]  # [4, M, 1] float64
        temperature, top_p, min_p, uniform = columns
        weights = weigh(logits, temperature.float())
        if method is SamplingMethod.BY_ID:
            return draw_by_id(weights, min_p, uniform), non_finite
        top_k = self._there(settings["top_k"])[:, None]
        most = int(settings["top_k"].max())
        return draw_by_rank(weights, top_k, top_p, min_p, uniform, most), non_finite

    def _launch(
        self,
        draws: TritonDraws,
        logits: Tensor,
        rows: NDArray[np.int64],
        settings: Settings,
        noise: NDArray[np.float64],
    ) -> tuple[Tensor, Tensor]:
        """Tokens [M] of these rows [M] of logits [L, V], and which of them mean nothing."""
        columns = slot_settings.columns(settings, noise)
        return draws.draw(logits, *together([rows, columns, settings["top_k"]], self._device))

    def _keep(self, tokens: Tensor, slots: Slots) -> None:
        self.last_tokens.index_copy_(0, self._there(slots.astype(np.int64)), tokens)

    def _count(self, tokens: Tensor, slots: Slots, settings: Settings) -> None:
        penalised = np.flatnonzero(slot_settings.penalised(settings))
        if len(penalised):
            histories = self._there(self._penalties.histories(slots[penalised]))
            self._penalties.count(histories, tokens[self._there(penalised)])

    def _pieces(self, rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Cut the rows into pieces whose logits fit PIECE_ELEMENTS."""
        for start in range(0, len(rows), self._piece_rows):
            yield rows[start : start + self._piece_rows]

    def _there(self, array: NDArray[Any]) -> Tensor:
        return to_device(array, self._device)

    def _sent(
        self, tokens: Tensor, non_finite: Tensor, logprobs: LogprobTensors | None = None
    ) -> SampledTensors:
        """Start the copies to the host."""
        tokens_host, non_finite_host = to_host(tokens), to_host(non_finite)
        logprobs_host = logprobs.map(to_host) if logprobs else None
        copied = None
        if self._device.type == "cuda":
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()
        return SampledTensors(tokens, tokens_host, non_finite_host, logprobs_host, copied)
