"""Which linear layers that multiply the same rows are computed as one product. On the CPU all are. On a GPU
those that one product serves faster, by its own clock: one group of each kind is tried at start.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from millstream_worker.engine.runner import merged
from millstream_worker.engine.runner.device_clock import device_seconds

_ROWS = 32  # of a decode step
_REPEATS = 9
_WORTH = 0.98
_OTHER_BYTES = 2**28  # several times what the caches of a GPU hold
_FILLS = 8  # of so many bytes: the device is busy with them until all is launched

Way = Callable[[], object]
Time = Callable[[Way], float]  # seconds of the device


def merge(model: nn.Module, groups: Sequence[Sequence[str]], device: torch.device) -> list[str]:
    """Merge the groups of siblings for which it pays; answers what was found, for the operator."""
    if device.type == "cpu":
        merged.merge(model, groups)
    if device.type != "cuda":
        return []
    trial = Trial(ColdTimes(device))
    # Without `empty_cache` what was freed would be missing for the next groups.
    merged.merge(model, groups, trial.pays, torch.cuda.empty_cache)
    return trial.found


class Trial:
    """Tries a group of each kind both ways."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self._pays: dict[tuple[object, ...], bool] = {}
        self.found: list[str] = []

    def pays(self, layers: Sequence[nn.Linear]) -> bool:
        """Whether one product takes less than these layers' own, with weights that are in no cache. Not in
        float32: there the same tokens are promised after a restart, and a trial may end otherwise then."""
        dtype = layers[0].weight.dtype
        if dtype == torch.float32:
            return False
        kind = (*(layer.weight.shape for layer in layers), dtype, layers[0].bias is None)
        if kind not in self._pays:
            try:
                self._pays[kind] = self._try(layers)
            except torch.OutOfMemoryError:
                self._pays[kind] = False
        return self._pays[kind]

    @torch.inference_mode()
    def _try(self, layers: Sequence[nn.Linear]) -> bool:
        first = layers[0].weight
        rows = torch.ones(_ROWS, first.shape[1], dtype=first.dtype, device=first.device)
        weight = torch.cat([layer.weight for layer in layers])
        biases: list[Tensor | None] = [layer.bias for layer in layers]  # all have one, or none does
        bias = torch.cat([bias for bias in biases if bias is not None]) if biases[0] is not None else None
        apart = self._seconds(lambda: [layer(rows) for layer in layers])
        joint = self._seconds(lambda: functional.linear(rows, weight, bias))
        sizes = "+".join(str(layer.out_features) for layer in layers)
        pays = joint < _WORTH * apart
        self.found.append(
            f"linear layers of {first.shape[1]} to {sizes}: apart {1e6 * apart:.0f} us, "
            f"as one product {1e6 * joint:.0f} us{'' if pays else ', left apart'}"
        )
        return pays

    def _seconds(self, way: Way) -> float:
        way()
        return statistics.median(self._time(way) for _ in range(_REPEATS))


class ColdTimes:
    """Times what a GPU does after its caches were filled with other things. The host launches it meanwhile:
    it is the device's time alone, as in a recorded step."""

    def __init__(self, device: torch.device) -> None:
        self._other: Tensor = torch.empty(_OTHER_BYTES, dtype=torch.uint8, device=device)

    def __call__(self, way: Way) -> float:
        for fill in range(_FILLS):
            self._other.fill_(fill)
        return device_seconds(way)
