from __future__ import annotations

from itertools import product

import pytest

from millstream_worker.engine.brain.batch.rows import RowState
from millstream_worker.engine.brain.scheduler_config import SchedulerConfig
from millstream_worker.engine.brain.waiting.row_factory import RowFactory
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec

ROW_FACTORY = RowFactory(
    SchedulerConfig(1, 1, block_size=4, blocks=25, context_length=100, prefix_cache=True, hash_seed=b"")
)


ALLOWED = {
    (RowState.WAITING, RowState.RUNNING),
    (RowState.WAITING, RowState.ENDED),
    (RowState.RUNNING, RowState.PREEMPTED),
    (RowState.RUNNING, RowState.ENDING),
    (RowState.PREEMPTED, RowState.WAITING),
    (RowState.PREEMPTED, RowState.ENDING),
    (RowState.ENDING, RowState.ENDED),
}


def test_only_these_moves_are_allowed() -> None:
    for before, after in product(RowState, RowState):
        [row] = ROW_FACTORY.rows(EngineRequest(0, (1, 2, 3), 10))
        row.state = before
        if (before, after) in ALLOWED:
            row.move(after)
            assert row.state is after
        else:
            with pytest.raises(AssertionError, match=f"{before.name} cannot become {after.name}"):
                row.move(after)


@pytest.mark.parametrize(
    ("output", "min_tokens", "reason"),
    [
        ((4,), 0, "stop"),
        ((4, 5), 0, None),  # only the last token ends a row
        ((4,), 1, None),
        ((3, 4), 1, "stop"),
        ((*range(9), 4), 0, "stop"),
        (tuple(range(10)), 0, "length"),
        ((), 0, None),  # the prompt's last token is not the row's
    ],
)
def test_why_a_row_ends(output: tuple[int, ...], min_tokens: int, reason: str | None) -> None:
    sampling = SamplingSpec(end_ids=(4,), min_tokens=min_tokens)
    [row] = ROW_FACTORY.rows(EngineRequest(0, (1, 2, 4), 10, sampling, outputs=(output,)))
    assert row.finish_reason() == reason
