from __future__ import annotations

from itertools import combinations_with_replacement, product

import pytest

from millstream_worker.engine.brain.batch.rows import Row, RowState
from millstream_worker.engine.brain.waiting.row_factory import RowFactory
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec

ROW_FACTORY = RowFactory(context_length=100, capacity=100, block_size=4, hash_seed=b"", prefix_cache=True)


def row_of(prompt: tuple[int, ...] = (1, 2, 3), output: tuple[int, ...] = (), **spec: object) -> Row:
    sampling = SamplingSpec(**spec)  # type: ignore[arg-type]
    return ROW_FACTORY.rows(EngineRequest(0, prompt, 10, sampling, outputs=(output,)))[0]


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
        row = row_of()
        row.state = before
        if (before, after) in ALLOWED:
            row.move(after)
            assert row.state is after
        else:
            with pytest.raises(AssertionError, match=f"{before.name} cannot become {after.name}"):
                row.move(after)


def test_tokens_run_on_from_prompt_to_output() -> None:
    row = row_of((1, 2, 3), (4, 5, 6, 7))
    for start, end in combinations_with_replacement(range(8), 2):
        assert row.tokens(start, end).tolist() == list(range(1, 8))[start:end]
        assert row.tokens(start, end).dtype == "int32"


def test_a_chain_over_prompt_and_output_is_that_of_one_long_prompt() -> None:
    split = row_of((1, 2, 3), (4, 5, 6, 7, 8, 9))
    whole = row_of((1, 2, 3, 4, 5, 6, 7, 8))
    assert split.hash_blocks(1, 4) == whole.hash_blocks(2, 4)[:1]
    assert split.hash_blocks(2, 4) == whole.chain


@pytest.mark.parametrize(
    ("output", "spec", "reason"),
    [
        ((4,), {}, None),
        ((4,), {"end_ids": (4,)}, "stop"),
        ((4, 5), {"end_ids": (4,)}, None),  # only the last token ends a row
        ((4,), {"end_ids": (4,), "min_tokens": 1}, None),
        ((3, 4), {"end_ids": (4,), "min_tokens": 1}, "stop"),
        (tuple(range(10)), {}, "length"),
        (tuple(range(10)), {"end_ids": (9,)}, "stop"),
        ((), {"end_ids": (3,)}, None),  # the prompt's last token is not the row's
    ],
)
def test_why_a_row_ends(output: tuple[int, ...], spec: dict[str, object], reason: str | None) -> None:
    assert row_of(output=output, **spec).finish_reason() == reason
