"""Describes a step to the Triton kernels: vectors that lie on the device, and a few numbers.

A captured graph keeps the numbers and the places of the vectors. So all that depends on lengths is read from
the vectors, and for every step of a size vectors of the same lengths do (`StepLayout.static_sizes`), with
anything beyond the step's own values blank: a slot, a part or a merge of -1 costs next to nothing and changes
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

# Numbers of each part and each merge, in the vectors below.
WIDTHS = {
    "decode_parts": 4,
    "decode_merges": 3,
    "shared_parts": 5,
    "prefill_parts": 6,
    "prefill_merges": 3,
}


@dataclass(frozen=True, slots=True, eq=False)
class DeviceStep:
    """The step of S segments and T tokens that the layers of one shape share; int32 where nothing else is
    said. The vectors may be longer than the step is.

    A *part* is a run of a row's keys that one program reads for its queries. Where there are several for a
    token, each leaves a *partial*: the mean of its values for that token, and what that weighs. Then they are
    merged. A token's partials lie one behind the other, those of shared parts first."""

    slots: Tensor  # [T] int64
    tables: Tensor  # [S, W]
    kv_lens: Tensor  # [S]
    query_lens: Tensor  # [S]
    query_starts: Tensor  # [S]
    decode_parts: Tensor  # [I, 4] segment; begin and end of the keys; partial, or -1: the only part
    decode_merges: Tensor  # [C, 3] token, first of its partials, how many
    members: Tensor  # [M] segments of prefix groups
    member_partials: Tensor  # [S] the first of each
    # [H, 5] place of a tile's first among the members, how many; begin and end of their keys; number of the
    # part among those of the tile
    shared_parts: Tensor
    # [J, 6] segment; first token of the tile, counted within its segment; begin and end of the keys; partial
    # of that token, or -1: the only part; how many partials a token has
    prefill_parts: Tensor
    prefill_merges: Tensor  # [D, 3]
    decodes: int
    decode_partials: int
    prefill_partials: int
