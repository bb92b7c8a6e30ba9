"""The simulation counts what a scheduler lets be computed."""

from __future__ import annotations

import numpy as np
import pytest
from ops.bench.pieces.scheduling import STEP_S, TOKEN_S, Arrival, ask, simulate


@pytest.mark.parametrize("known", [True, False])
def test_steps_tokens_and_seconds_of_two_rows(known: bool) -> None:
    """Prompts of 10 and 20 tokens in the first step; the longer row's last token comes in the fifth."""
    random = np.random.default_rng(0)
    rows = [ask(random, 1, 10, 3, known=known), ask(random, 2, 20, 5, known=known, priority=0)]
    outcome = simulate([Arrival(row) for row in rows])
    assert (outcome.steps, outcome.tokens) == (5, 30 + 2 * 2 + 2)
    assert outcome.seconds == pytest.approx(5 * STEP_S + 36 * TOKEN_S)
    assert outcome.done[1] == pytest.approx(3 * STEP_S + 34 * TOKEN_S)
    assert outcome.first == pytest.approx(dict.fromkeys((1, 2), STEP_S + 30 * TOKEN_S))
    assert outcome.interactive == {2}
    assert outcome.gaps[2] == pytest.approx(STEP_S + 2 * TOKEN_S)
