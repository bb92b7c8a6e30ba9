"""Models that keep a recurrent state beside keys and values: what is seen of them, what of a row's state
their logits depend on, and that nothing around a row changes a bit of it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.engine.planning import Segment, pack
from support.engine.serving import logits_of, runner_of
from support.engine.whole_engine import answers, engine_on
from support.models.checkpoints import (
    CASES,
    DELTA_RULES,
    MECHANISMS,
    RECURRENT,
    VOCABULARY,
    build,
    logits,
    plain,
    quiet,
)

from millstream_worker.engine.brain.batch.rows import Row
from millstream_worker.engine.brain.speculation.acceptance import Acceptance, GuessSource
from millstream_worker.engine.brain.speculation.text_drafter import Guess
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.process import CannotLoad
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.model.load import LoadedModel, load_model
from millstream_worker.engine.runner.model_config import model_types
from millstream_worker.engine.runner.model_config.support import UnsupportedModel
from millstream_worker.engine.runner.states import functions, native_states
from millstream_worker.engine.runner.states.native_states import NativeStates
from millstream_worker.engine.runner.states.spec import ConvolutionSpec, RuleSpec, StateSpec
from millstream_worker.engine.runner.states.torch_states import TorchStates

Load = Callable[[str], LoadedModel]
BLOCK = 4
TIERED = [
    pytest.param(case, marks=() if case in MECHANISMS else pytest.mark.slow) for case in sorted(RECURRENT)
]
DELTA = StateSpec(ConvolutionSpec(64, 4, activated=True), RuleSpec(2, 4, 8, 8))
CHANNELS = StateSpec(ConvolutionSpec(96, 4, activated=True), RuleSpec(4, 4, 8, 8, by_channel=True))
SHORT = StateSpec(ConvolutionSpec(32, 3, activated=False))
SCAN = StateSpec(ConvolutionSpec(96, 4, activated=True), RuleSpec(2, 8, 8, 8, corrects=False))
FOUND = {  # layers of the tiny models with attention, and their states
    "bamba": (2, [SCAN] * 2),
    "falcon_h1": (4, [SCAN] * 4),
    "granitemoehybrid": (2, [SCAN] * 2),
    "kimi_linear": (2, [CHANNELS] * 2),
    "lfm2": (1, [SHORT] * 3),
    "lfm2_moe": (1, [SHORT] * 3),
    "lfm3": (1, [SHORT] * 3),
    "nemotron_h": (1, [SCAN] * 2),
    "nemotron_h-experts": (1, [SCAN] * 2),
    "olmo_hybrid": (2, [DELTA] * 2),
    "qwen3_5_moe_text": (2, [DELTA] * 2),
    "qwen3_5_text": (2, [DELTA] * 2),
    "qwen3_next": (2, [DELTA] * 2),
}


def test_types_with_a_state_are_known_as_such() -> None:
    assert {CASES[case][0] for case in RECURRENT} == model_types.RECURRENT
    assert model_types.RECURRENT < model_types.PROVEN


@pytest.mark.parametrize("case", TIERED)
def test_modules_with_a_state_are_found_by_what_they_call(case: str, load: Load) -> None:
    """Other versions of transformers may name their functions otherwise: this tells."""
    loaded = load(case)
    attentions, states = FOUND[case]
    assert list(loaded.state_specs) == states
    assert len(loaded.anatomy.attention_modules) == attentions


@pytest.mark.parametrize("case", TIERED)
def test_logits_and_their_dependence_on_the_state(
    case: str, load: Load, checkpoint: Callable[[str], Path]
) -> None:
    """Logits at every position of rows that are computed in pieces, as transformers'; then the last token of
    each row again, from its own checkpoint, and with one thing wrong: the same comparison must see it.

    With delta rules transformers is off by up to 6e-4 of what it computes in float64, we by 1.1e-4."""
    reference, chance = plain(checkpoint(case)), random.Random(7)
    off = 1e-3 if case in DELTA_RULES else 1e-4
    texts = [[chance.randrange(3, VOCABULARY) for _ in range(length)] for length in (45, 13, 74)]
    with quiet():
        wanted = [logits(reference, text) for text in texts]
    runner, _ = runner_of(load(case), blocks=40, block_size=BLOCK)
    assert runner.states is not None
    blocks = [[*range(10, -1, -1), 19], [39, 12, 20, 13], [*range(21, 39), 14]]

    def compute(slot: int, begin: int, end: int, **copies: list[list[int]]) -> torch.Tensor:
        piece = Segment(slot, texts[slot][begin:end], begin, blocks[slot], range(end - begin))
        pairs: Any = {name: np.array(given, np.int32) for name, given in copies.items()}
        return logits_of(runner, replace(pack([piece], BLOCK), **pairs))

    for slot, text in enumerate(texts):
        last = len(text) - 1
        got = [compute(slot, *span) for span in ((0, 5), (5, 6), (6, 11))]
        got.append(compute(slot, 11, last, state_saves=[[slot, slot]]))
        got.append(compute(slot, last, last + 1))
        torch.testing.assert_close(torch.cat(got), wanted[slot], atol=off, rtol=0)

    def from_checkpoint(slot: int, place: int) -> torch.Tensor:
        """Logits of the last token."""
        last = len(texts[slot]) - 1
        return compute(slot, last, last + 1, state_loads=[[place, slot]])[0]

    def distance(slot: int, place: int) -> float:
        return float((from_checkpoint(slot, place) - wanted[slot][-1]).abs().max())

    for slot in range(len(texts)):
        assert distance(slot, slot) < off
        assert distance(slot, (slot + 1) % 3) > 20 * off, "another row's state goes unseen"
        with pytest.raises(RuntimeError, match=r"its state stands at .*; its row goes on at"):
            compute(slot, len(texts[slot]) - 1, len(texts[slot]))  # a token twice
        own = from_checkpoint(slot, slot)
        for states in (runner.states.convolutions, runner.states.rules):
            for state in filter(lambda one: one is not None, states):
                place = runner.states.max_rows + slot
                kept = state[place].clone()
                state[place] = 0
                changed = float((from_checkpoint(slot, slot) - own).abs().max())
                assert changed > 2e-3, "a module without its state goes unseen"
                state[place] = kept
        assert distance(slot, slot) < off


def requests_of(count: int, **sampling: Any) -> list[EngineRequest]:
    """Ragged rows, some of which share a beginning."""
    chance = random.Random(9)
    shared = [chance.randrange(3, VOCABULARY) for _ in range(21)]
    prompts = [
        (shared if number % 2 else [])[: 7 + 5 * number]
        + [chance.randrange(3, VOCABULARY) for _ in range(2 + 3 * (number % 4))]
        for number in range(count)
    ]
    spec = SamplingSpec(temperature=0.0, top_logprobs=3, **sampling)
    return [EngineRequest(handle, tuple(prompt), 20, spec) for handle, prompt in enumerate(prompts)]


def drawn(engine: Engine[Any], requests: list[EngineRequest]) -> dict[int, Any]:
    found = answers(engine, requests)
    return {handle: (found.tokens[handle], found.logprobs[handle]) for handle in found.tokens}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "sizes", "bytes_of_30_blocks"),
    [
        ("lfm2", {}, 23_808),
        ("qwen3_5_text", {"linear_num_value_heads": 32}, 264_000),
    ],
)
def test_what_is_around_a_row_changes_no_bit_of_it(
    case: str, sizes: dict[str, int], bytes_of_30_blocks: int, tmp_path: Path
) -> None:
    """Alone, from no checkpoint; among others with chunks of any length; from checkpoints; after a hundred
    rows; preempted. Heads: PyTorch computes numbers that fill no vector with other functions."""
    requests, folder = requests_of(10), build(case, tmp_path, **sizes)

    def engine(**changes: Any) -> Engine[Any]:
        return engine_on("cpu", folder, shared_attention=False, **changes)

    alone: dict[int, Any] = {}
    for request in requests:
        alone |= drawn(engine(prefix_cache=False), [request])
    for step_tokens in (5, 7, 64):
        made = engine(max_step_tokens=step_tokens)
        assert drawn(made, requests) == alone
        assert made.scheduler.states.loaded > 3
    made = engine()
    for start in range(100, 200, 10):
        answers(made, [EngineRequest(one.handle + start, one.prompt[::-1], 3) for one in requests])
    assert drawn(made, requests) == alone
    made = engine(kv_memory=str(bytes_of_30_blocks))
    assert drawn(made, requests) == alone
    assert made.scheduler.stats().preemptions_total > 0


class Knowing:
    """`Drafter` that knows the outputs, and errs in every fifth token."""

    def __init__(self, outputs: dict[int, list[int]]) -> None:
        self.acceptance = Acceptance()
        self._outputs = outputs

    def guess(self, row: Row) -> Guess | None:
        place = len(row.output)
        known = self._outputs[row.handle][place : place + 12]
        tokens = [abs(token - ((index + row.handle) % 5 == 0)) for index, token in enumerate(known, place)]
        return Guess(GuessSource.OWN, 20, tokens)

    def learn(self, row: Row) -> None:
        """It knows."""


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        *(pytest.param(*one.values, {}, marks=one.marks) for one in TIERED),
        ("qwen3_5_text", {"attention": "torch"}),
        ("qwen3_5_text", {"dtype": "bfloat16"}),
        ("nemotron_h", {"dtype": "bfloat16"}),
    ],
)
def test_draft_tokens_change_no_token(
    case: str, changes: dict[str, str], checkpoint: Callable[[str], Path]
) -> None:
    requests = [
        EngineRequest(handle, (*range(3, 15), handle), 30 + handle, SamplingSpec(handle % 3 * 0.4))
        for handle in range(7)
    ]

    def engine(speculate: str) -> Engine[Any]:
        return engine_on("cpu", checkpoint(case), speculate=speculate, max_rows=24, **changes)

    plain, made = answers(engine("off"), requests).tokens, engine("always")
    made.scheduler._speculation._drafter = Knowing(plain)
    assert answers(made, requests).tokens == plain
    totals = made.scheduler.stats()
    assert totals.drafted_total > totals.accepted_total > 60


def test_choices_begin_at_one_checkpoint(checkpoint: Callable[[str], Path]) -> None:
    made = engine_on("cpu", checkpoint("qwen3_5_text"))
    prompt = tuple(range(5, 26))
    sampling = SamplingSpec(temperature=1.0, seed=4)
    found = answers(made, [EngineRequest(0, prompt, 6, sampling, choices=5)])
    states = made.scheduler.states
    assert (states.saved, states.loaded) == (1, 4)
    assert made.scheduler.stats().prompt_computed_total == 21 + 4 * 1
    for choice in (0, 3):
        one = EngineRequest(0, prompt, 6, sampling, choices=choice + 1, done=tuple(range(choice)))
        assert answers(engine_on("cpu", checkpoint("qwen3_5_text")), [one]).tokens == {
            choice: found.tokens[choice]
        }


def test_a_damaged_state_is_not_found_again(checkpoint: Callable[[str], Path]) -> None:
    """Its row ends, and the next with that prompt computes it anew."""
    made = engine_on("cpu", checkpoint("qwen3_5_text"))
    first, second = (EngineRequest(handle, (*range(5, 26), handle), 4) for handle in (0, 1))
    answers(made, [first, second])
    made.runner.states.memory.fill_(torch.nan)
    assert answers(made, [EngineRequest(2, first.prompt, 4)]).reasons == {2: "error"}
    assert answers(made, [EngineRequest(3, first.prompt, 4)]).reasons == {3: "length"}


@pytest.mark.parametrize("changes", [{"weights": "int8"}, {"kv_dtype": "int8"}, {"dtype": "bfloat16"}])
@pytest.mark.parametrize("case", [pytest.param("lfm2", marks=pytest.mark.slow), "qwen3_5_text"])
def test_it_runs_with_small_numbers(
    case: str, changes: dict[str, str], checkpoint: Callable[[str], Path]
) -> None:
    """Some tokens differ; most of the first ones do not."""
    requests = requests_of(8)
    exact, rough = (
        answers(engine_on("cpu", checkpoint(case), **one), requests).tokens for one in ({}, changes)
    )
    assert sum(rough[handle][0] == exact[handle][0] for handle in exact) >= 5


def test_native_states_are_checked_and_used(checkpoint: Callable[[str], Path]) -> None:
    lines: list[str] = []
    asked = {"host_swap": "1MiB", "speculate": "always"}
    made = engine_on("cpu", checkpoint("qwen3_5_text"), lines.append, max_rows=3, **asked)
    assert isinstance(made.runner.model.eager.states, NativeStates)
    assert any(line.startswith("recurrent states checked: off by at most") for line in lines)
    held = re.compile(
        r"recurrent states .*: 3 rows and \d+ checkpoints, [\d.]+ KiB each \(float32\); draft tok"
    )
    assert any(map(held.match, lines)), lines
    assert any(line.startswith("host_swap is off: rows with a recurrent state") for line in lines)
    plainly = engine_on("cpu", checkpoint("qwen3_5_text"), attention="torch")
    assert isinstance(plainly.runner.model.eager.states, TorchStates)


@pytest.mark.parametrize("named", ["auto", "native"])
def test_states_that_fail_their_check_are_pytorchs_or_refused(
    named: str, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def advance(self: object, query: Any, key: Any, value: Any, *rest: Any) -> Any:
        return value * 0.5

    monkeypatch.setattr(native_states._NativeLayer, "advance", advance)
    if named == "native":
        with pytest.raises(CannotLoad, match="its recurrent states do not work here: a gated delta rule is"):
            engine_on("cpu", checkpoint("qwen3_5_text"), attention=named)
        return
    lines: list[str] = []
    made = engine_on("cpu", checkpoint("qwen3_5_text"), lines.append, attention=named)
    assert isinstance(made.runner.model.eager.states, TorchStates)
    assert any("recurrent states: plain PyTorch, many times slower: a gated delta" in line for line in lines)


def test_a_gpu_is_refused_before_weights_are_read(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(
        UnsupportedModel, match=r"Qwen3_5ForCausalLM \(qwen3_5_text\) keeps a recurrent state"
    ):
        load_model(
            str(checkpoint("qwen3_5_text")),
            dtype=torch.float32,
            device=torch.device("cuda"),
            attention="torch",
        )


def test_other_models_of_the_process_compute_as_before(checkpoint: Callable[[str], Path]) -> None:
    text = [*range(3, 60)]
    with quiet():
        before = logits(plain(checkpoint("qwen3_5_text")), text)
        loaded = load_model(str(checkpoint("qwen3_5_text")), dtype=torch.float32, device=torch.device("cpu"))
        runner_of(loaded, blocks=20, block_size=BLOCK)
        assert torch.equal(logits(plain(checkpoint("qwen3_5_text")), text), before)


def test_an_activation_that_is_not_known_is_refused(tmp_path: Path) -> None:
    folder = build("qwen3_5_text", tmp_path, hidden_act="gelu")
    with pytest.raises(UnsupportedModel, match="convolutions are followed by 'gelu', and only silu is known"):
        load_model(str(folder), dtype=torch.float32, device=torch.device("cpu"), attention="torch")


def test_functions_of_other_names_are_missed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As another version of transformers may have them: the count of layers refuses the model."""
    monkeypatch.setattr(functions, "_METHODS", {"a_convolution": "convolve", "a_rule": "advance"})
    folder = build("qwen3_5_text", tmp_path)
    with pytest.raises(UnsupportedModel, match="2 calls of the attention interface by 2 modules in 4 layers"):
        load_model(str(folder), dtype=torch.float32, device=torch.device("cpu"), attention="torch")
