"""Who gets in first, seen from outside; the rules one by one are in test_waiting."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from support.engine.brain import ask, rig_of

from millstream_worker.engine.protocol.request import EngineRequest


def test_a_flood_of_one_tenant_does_not_drown_another(depth: int) -> None:
    """While both have work, both get the same tokens, whatever the number and length of their requests."""
    rig = rig_of(max_rows=2, pipeline_depth=depth)
    rig.add(*(ask(handle, 8, max_tokens=8, tenant="flood") for handle in range(40)))
    rig.steps(20)
    rig.add(*(ask(100 + handle, 20, max_tokens=12, tenant="late") for handle in range(10)))
    before = {handle for handle, _ in rig.admitted}
    while not all(100 + handle in rig.finished for handle in range(9)):
        rig.step()
    tokens: Counter[str] = Counter()
    for handle, _ in rig.admitted:
        if handle not in before:
            tokens["late" if handle >= 100 else "flood"] += 32 if handle >= 100 else 16
    assert abs(tokens["late"] - tokens["flood"]) <= 3 * 32
    rig.run()


def questions(documents: int, each: int, **fields: Any) -> list[EngineRequest]:
    """Asked in turns, about documents of 40 tokens."""
    return [
        ask(handle, (*range(50 * document, 50 * document + 40), 900 + handle % 90), **fields)
        for handle in range(documents * each)
        for document in [handle % documents]
    ]


@pytest.mark.parametrize("max_step_tokens", [512, 16])
def test_each_group_is_computed_once_in_a_pool_that_holds_one(depth: int, max_step_tokens: int) -> None:
    rig = rig_of(blocks=18, max_rows=4, pipeline_depth=depth, max_step_tokens=max_step_tokens)
    rig.run(*questions(documents=8, each=20))
    groups = [handle % 8 for handle, _ in rig.admitted]
    assert sum(one != other for one, other in pairwise(groups)) == 7
    assert rig.scheduler.stats().prompt_computed_total == 8 * 40 + 160


LENGTHS = (40, 60, 80, 100)  # of documents, behind an instruction of 8 tokens


def shuffled(documents: int, each: int) -> list[EngineRequest]:
    """Questions of one token, in any order, with answers of any length."""
    random = Random(documents)
    pairs = [(document, question) for document in range(documents) for question in range(each)]
    random.shuffle(pairs)
    bodies = [[random.randrange(900) for _ in range(LENGTHS[one % len(LENGTHS)])] for one in range(documents)]
    return [
        ask(handle, (*range(8), *bodies[document], 900 + question), random.choice((1, 4, 20)), priority=1)
        for handle, (document, question) in enumerate(pairs)
    ]


def least(requests: list[EngineRequest], block: int) -> int:
    """Prompt tokens to compute if each full block is computed once, and each last token by its own row."""
    full = {r.prompt[:end] for r in requests for end in range(block, len(r.prompt), block)}
    return block * len(full) + sum((len(r.prompt) - 1) % block + 1 for r in requests)


@pytest.mark.parametrize("sizes", [{}, {"state_places": 8}, {"state_places": 2}])
@pytest.mark.parametrize(("max_rows", "blocks", "max_step_tokens"), [(3, 48, 64), (3, 60, 24), (6, 66, 200)])
def test_shuffled_questions_need_each_document_once(
    sizes: dict[str, int], max_rows: int, blocks: int, max_step_tokens: int
) -> None:
    """In a pool that holds one document of the longest, and answers. With a recurrent state, too, whose next
    rows come in one step after the first has made its checkpoint.
    """
    rig = rig_of(max_rows=max_rows, blocks=blocks, max_step_tokens=max_step_tokens, pipeline_depth=1, **sizes)
    requests = shuffled(documents=8, each=12)
    rig.run(*requests)
    assert rig.scheduler.stats().prompt_computed_total <= 1.1 * least(requests, block=4)


def test_a_turn_of_the_longest_waiting_costs_one_document() -> None:
    """Where everybody has waited for long, a group is interrupted once in so many admissions, and what it
    shares may have to be computed again.
    """
    rig = rig_of(max_rows=3, blocks=48, patience_s=0.0, pipeline_depth=1)
    requests = shuffled(documents=8, each=12)
    rig.run(*requests)
    turns = len(requests) // 8  # twice the rows of the batch, rounded up to four
    extra = rig.scheduler.stats().prompt_computed_total - least(requests, block=4)
    assert 0 < extra <= turns * max(LENGTHS)


def test_a_group_sometimes_yields_to_the_longest_waiting_row() -> None:
    """Questions about one document come without end; the other document's are not kept out by them, and the
    first is not computed again for each of them."""
    rig = rig_of(ask(0, (*range(40), 900), max_tokens=8), blocks=18, max_rows=4, patience_s=10.0)
    rig.step()
    rig.add(*(ask(1 + n, (*range(500, 540), 950 + n), max_tokens=8) for n in range(6)))
    for handle in range(100, 400):
        rig.add(ask(handle, (*range(40), 100 + handle), max_tokens=8))
        rig.step()
        if set(range(7)) <= rig.finished.keys():
            break
    assert set(range(7)) <= rig.finished.keys()
    switches = [handle in range(1, 7) for handle, _ in rig.admitted]
    assert sum(one != other for one, other in pairwise(switches)) <= 6
    rig.run()


def test_a_long_batch_prompt_lets_interactive_rows_in(depth: int) -> None:
    rig = rig_of(ask(1, 160), pipeline_depth=depth, max_step_tokens=8)
    rig.steps(3)
    rig.add(ask(2, 6, priority=0))
    rig.steps(3 + depth)
    assert rig.output[2]
    assert not rig.output[1]
    rig.run()


@pytest.mark.parametrize("prompt", [1, 6, 11, 16])
def test_a_long_prompt_advances_beside_endless_interactive_rows(depth: int, prompt: int) -> None:
    rig = rig_of(ask(1, 80), pipeline_depth=depth, max_step_tokens=8)
    rig.step()
    for step in range(120):
        rig.add(ask(10 + step, prompt, priority=0, max_tokens=1))
        rig.step()
    assert 1 in rig.finished
    rig.run()
