"""A model that counts: the next token is the previous one + 1 (mod vocabulary), skipping end ids below
`min_tokens`.

It is driven by plans alone and keeps a paged store of two layers. The first holds token and position; the
second a digest of all first-layer entries up to there, read through the block table, as the deeper layers of
a real model do. Beside it each slot has a recurrent state, the tokens that it was given, which plans load and
save; it stays before a row's draft tokens until the row's next step tells which were right. Before a draw the
row's whole context is read back, both ways, and compared with what the row must contain: after any wrong
block, position, slot, token or checkpoint the draw is `WRONG` too much, and `faults` says where.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from millstream_worker.engine.brain.batch.noise import row_key, uniform
from millstream_worker.engine.brain.batch.plan import Plan, Sampled, SampledLogprobs, TokenMasks
from millstream_worker.engine.brain.batch.rows import Row
from millstream_worker.engine.brain.scheduler import Scheduler
from millstream_worker.engine.brain.speculation.acceptance import Acceptance, GuessSource
from millstream_worker.engine.brain.speculation.text_drafter import Guess
from millstream_worker.engine.protocol.frames import HoldImage
from millstream_worker.engine.protocol.outputs import Step
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from support.engine.counting_images import CountingImages

WRONG = 50
VOCAB = 1000


DEFAULT = SamplingSpec()


def counted(
    prompt: Sequence[int], max_tokens: int, sampling: SamplingSpec = DEFAULT
) -> tuple[list[int], str]:
    """The tokens and the finish reason of a row that runs alone."""
    tokens: list[int] = []
    while len(tokens) < max_tokens:
        tokens.append(_next((tokens or prompt)[-1], len(tokens), sampling))
        if tokens[-1] in sampling.end_ids and len(tokens) > sampling.min_tokens:
            return tokens, "stop"
    return tokens, "length"


def _next(last: int, output_index: int, sampling: SamplingSpec) -> int:
    token = (last + 1) % VOCAB
    while output_index < sampling.min_tokens and token in sampling.end_ids:
        token = (token + 1) % VOCAB
    return token


class CountingRunner:
    """Stands where the runner stands: launch computes at once, settle hands out the draws."""

    def __init__(
        self, *, blocks: int, block_size: int, max_rows: int, host_blocks: int = 0, state_places: int = 0
    ) -> None:
        self.states: list[list[int]] = [[] for _ in range(max_rows)]  # by slot
        self.held: list[list[int]] = [[] for _ in range(max_rows)]  # by slot: behind the state
        self.checkpoints: list[list[int]] = [[] for _ in range(state_places)]
        self.block_size = block_size
        self.tokens = np.full(blocks * block_size, -1, np.int64)
        self.positions = np.full(blocks * block_size, -1, np.int64)
        self.digests = np.zeros(blocks * block_size, np.uint64)
        self._host = np.full((3, host_blocks, block_size), -1, np.int64)
        self.last = [0] * max_rows  # by slot: the token drawn last
        self.rows: list[list[int]] = [[] for _ in range(max_rows)]  # by slot: what the row must contain
        self.sampling = [SamplingSpec()] * max_rows
        self.images = CountingImages()
        self.scheduler: Scheduler | None = None  # tells the images of rows; None: no row has any
        self.faults: list[str] = []
        self.non_finite: set[int] = set()  # tokens that come out as non-finite logits

    def launch(self, plan: Plan) -> Sampled:
        drawn = self._draw(plan, *self._compute(plan))
        for slot, place in plan.state_saves.tolist():
            self.checkpoints[place] = self.states[slot]
        return drawn

    def _compute(self, plan: Plan) -> tuple[list[list[int]], list[bool]]:
        """By segment: what it must find, and whether it did."""
        check_shapes(plan, self.block_size)
        self._swap(plan)
        for load in plan.loads:
            self.rows[load.slot] = self._with_images(load.slot, [*load.prompt, *load.output])
            self.sampling[load.slot] = load.sampling
        slots = np.repeat(plan.row_slots, plan.query_lens)
        tokens = np.where(plan.from_device, np.array(self.last)[slots], plan.tokens)
        self.images.encode(plan.encodes)
        for piece in plan.images:
            features = [self.images.of(piece.key, piece.feature + at) for at in range(piece.count)]
            tokens[piece.place : piece.place + piece.count] = features
        self.tokens[plan.slot_mapping[0]] = tokens
        self.positions[plan.slot_mapping[0]] = plan.positions
        states = self._advance(plan, tokens.tolist()) if self.checkpoints else None
        segments = range(len(plan.row_slots))
        places = [self._places(plan, segment) for segment in segments]
        for segment in segments:  # the second layer writes for all rows before it reads for any
            new = plan.query_lens[segment]
            self.digests[places[segment][-new:]] = digests(self.tokens[places[segment]])[-new:]
        texts = self._texts(plan)
        return texts, [
            self._is_healthy(
                plan, one, places[one], texts[one], texts[one] if states is None else states[one]
            )
            for one in segments
        ]

    def _with_images(self, slot: int, tokens: list[int]) -> list[int]:
        if self.scheduler is None:
            return tokens
        row = self.scheduler._batch.rows[slot]
        if row is None:  # a test has loaded it
            return tokens
        request = row.origin.request
        salt, _ = self.scheduler.image_key(request.salt, b"")
        return self.images.in_prompt(tokens, salt, request.images)

    def forward(self, plan: Plan) -> Sampled:
        return self.launch(plan)

    def sample(self, handle: Sampled, masks: TokenMasks | None = None) -> None:
        """It has its tokens."""

    def settle(self, handle: Sampled) -> Sampled:
        return handle

    def _swap(self, plan: Plan) -> None:
        stores = [
            array.view(np.int64).reshape(-1, self.block_size)
            for array in (self.tokens, self.positions, self.digests)
        ]
        for block, place in plan.swap_out.tolist():
            self._host[:, place] = [store[block] for store in stores]
        for place, block in plan.swap_in.tolist():
            for store, page in zip(stores, self._host[:, place], strict=True):
                store[block] = page

    def _advance(self, plan: Plan, tokens: list[int]) -> list[list[int]]:
        """By segment: the state behind it."""
        for place, slot in plan.state_loads.tolist():
            self.states[slot], self.held[slot] = self.checkpoints[place], []
        starts, found = plan.query_starts.tolist(), list[list[int]]()
        for segment, slot in enumerate(plan.row_slots.tolist()):
            own = tokens[starts[segment] : starts[segment + 1]]
            if is_drafted(plan, segment):
                self.held[slot] = [*(self.held[slot] or found[-1][-1:]), *own]
                self.states[slot] = found[-1][: plan.kv_lens[segment] - len(self.held[slot])]
                found.append([*found[-1], *own])
            else:
                before = [*self.states[slot], *self.held[slot]][: plan.positions[starts[segment]]]
                self.states[slot], self.held[slot] = [*before, *own], []
                found.append(self.states[slot])
        return found

    def _places(self, plan: Plan, segment: int) -> NDArray[np.int64]:
        """Where the block table says that the tokens of the row's context are."""
        blocks, offsets = np.divmod(np.arange(plan.kv_lens[segment]), self.block_size)
        return plan.block_tables[0][segment][blocks].astype(np.int64) * self.block_size + offsets

    def _texts(self, plan: Plan) -> list[list[int]]:
        """What each segment must find: its row's text, and the draft tokens up to its own."""
        texts: list[list[int]] = []
        for segment, slot in enumerate(plan.row_slots.tolist()):
            if is_drafted(plan, segment):
                texts.append([*texts[-1], int(plan.tokens[segment])])
            else:
                texts.append(self.rows[slot][: plan.kv_lens[segment]])
        return texts

    def _is_healthy(
        self, plan: Plan, segment: int, places: NDArray[np.int64], text: list[int], state: list[int]
    ) -> bool:
        slot, kv_len = int(plan.row_slots[segment]), int(plan.kv_lens[segment])
        expected = np.array(text)
        sound = (
            np.array_equal(self.tokens[places], expected)
            and np.array_equal(self.positions[places], np.arange(kv_len))
            and np.array_equal(self.digests[places], digests(expected))
            and state == text
        )
        if not sound:
            self.faults.append(
                f"step {plan.step}, slot {slot}, kv_len {kv_len}: tokens {self.tokens[places].tolist()} at "
                f"{self.positions[places].tolist()}, state {state}, should be {text}"
            )
        return sound

    def _draw(self, plan: Plan, texts: list[list[int]], healthy: list[bool]) -> Sampled:
        drawn: list[int] = []
        logprobs: dict[int, SampledLogprobs] = {}
        for index, segment in enumerate(plan.logit_segments.tolist()):
            slot = int(plan.row_slots[segment])
            text, sampling = texts[segment], self.sampling[slot]
            token = self._token(plan, index, text)
            drawn.append(token if healthy[segment] else (token + WRONG) % VOCAB)
            if text == self.rows[slot]:  # else it follows a draft token that was wrong
                self.rows[slot] = [*text, drawn[-1]]
                self.last[slot] = drawn[-1]
            if sampling.top_logprobs is not None:
                top = tuple((drawn[-1] + other) % VOCAB for other in range(sampling.top_logprobs))
                logprobs[index] = SampledLogprobs(-float(token), top, tuple(-float(t) for t in top))
        non_finite = tuple(index for index, token in enumerate(drawn) if token in self.non_finite)
        return Sampled(np.array(drawn, np.int32), logprobs, non_finite)

    def _token(self, plan: Plan, place: int, text: list[int]) -> int:
        """The one that comes after this text. `place`: among the plan's samples."""
        slot = int(plan.row_slots[plan.logit_segments[place]])
        return _next(text[-1], int(plan.output_indices[place]), self.sampling[slot])


class ErringDrafter:
    """`Drafter` that knows how the model counts, and errs once in `every` tokens, at places that the output
    decides. It is sure of itself.
    """

    def __init__(self, every: int) -> None:
        self.acceptance = Acceptance()
        self._every = every

    def guess(self, row: Row) -> Guess | None:
        last, place = (row.output or list(row.origin.request.prompt))[-1], len(row.output)
        tokens = []
        for index in range(place, place + 6):
            token = _next(last, index, row.origin.request.sampling)
            wrong = (token + index) % self._every == 0
            tokens.append((token + 3) % VOCAB if wrong else token)
            last = tokens[-1]
        return Guess(GuessSource.OWN, 20, tokens)

    def learn(self, row: Row) -> None:
        """It knows."""


def is_drafted(plan: Plan, segment: int) -> bool:
    """Whether a segment computes a draft token: it goes on where the one before it ends."""
    return 0 < segment < plan.decodes and plan.row_slots[segment] == plan.row_slots[segment - 1]


def digests(tokens: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A number for each prefix; order counts."""
    weights = np.arange(1, len(tokens) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return np.cumsum((tokens + 7).astype(np.uint64) * weights, dtype=np.uint64)


def check_shapes(plan: Plan, block_size: int) -> None:
    """What every plan promises, whatever it contains."""
    segments, count, draws = len(plan.row_slots), plan.token_count, len(plan.logit_indices)
    assert segments > 0, "an empty plan"
    drafted = [segment for segment in range(segments) if is_drafted(plan, segment)]
    assert len(set(plan.row_slots.tolist())) == segments - len(drafted), "a slot twice"
    assert all(plan.kv_lens[segment] == plan.kv_lens[segment - 1] + 1 for segment in drafted)
    assert plan.query_lens.min() >= 1
    assert plan.query_lens[: plan.decodes].tolist() == [1] * plan.decodes
    assert plan.query_starts.tolist() == [0, *np.cumsum(plan.query_lens).tolist()]
    assert plan.query_starts[-1] == count == len(plan.positions) == len(plan.from_device)
    assert len(plan.kv_lens) == segments
    assert not plan.from_device[plan.decodes :].any()
    for table, mapping in zip(plan.block_tables, plan.slot_mapping, strict=True):
        assert table.shape == (segments, -(-int(plan.kv_lens.max()) // block_size))
        assert len(mapping) == count == len(set(mapping.tolist())), "two tokens in one place"
    places = plan.swap_out[:, 1].tolist()
    assert len(set(places)) == len(places), "two blocks to one place in host memory"
    assert len(set(plan.swap_in[:, 1].tolist())) == len(plan.swap_in), "two pages into one block"
    assert len(plan.logit_segments) == len(plan.output_indices) == len(plan.noise) == draws
    check_prefix_groups(plan, block_size)
    assert plan.logit_indices.tolist() == (plan.query_starts[1:][plan.logit_segments] - 1).tolist()
    assert ((plan.noise >= 0) & (plan.noise < 1)).all()
    dtypes = (plan.tokens, plan.positions, plan.query_lens, plan.query_starts, plan.kv_lens, plan.row_slots)
    assert {array.dtype for array in dtypes} == {np.dtype(np.int32)}
    assert {a.dtype for a in (*plan.block_tables, plan.logit_indices, plan.logit_segments)} == {
        np.dtype(np.int32)
    }
    assert (plan.slot_mapping[0].dtype, plan.from_device.dtype) == (np.int64, np.bool_)


def check_prefix_groups(plan: Plan, block_size: int) -> None:
    """Members decode, are in one prefix group, and begin with the same full blocks, computed before this
    step."""
    members = plan.prefix_group_segments.tolist()
    assert len(set(members)) == len(members), "a segment in two prefix groups"
    assert all(0 <= member < plan.decodes for member in members), "a member that does not decode"
    assert plan.prefix_group_starts.tolist()[0] == 0
    assert plan.prefix_group_starts.tolist()[-1] == len(members)
    assert len(plan.prefix_group_starts) == len(plan.prefix_group_lens) + 1
    for group, tokens in enumerate(plan.prefix_group_lens.tolist()):
        rows = plan.prefix_group_segments[
            plan.prefix_group_starts[group] : plan.prefix_group_starts[group + 1]
        ]
        assert len(rows) >= 2
        assert tokens > 0
        assert tokens % block_size == 0, "a prefix group shares part of a block"
        assert (plan.kv_lens[rows] > tokens).all(), "a prefix group shares what is not computed"
        for table in plan.block_tables:
            shared = table[rows, : tokens // block_size]
            assert (shared == shared[0]).all(), "a prefix group's blocks differ"
    arrays = (plan.prefix_group_lens, plan.prefix_group_starts, plan.prefix_group_segments)
    assert {array.dtype for array in arrays} == {np.dtype(np.int32)}


class Rig:
    """Scheduler and counting model under a clock that ticks once a step, or as far as `step_s` says of its
    plan; audits the scheduler all the time."""

    def __init__(self, scheduler: Scheduler, step_s: Callable[[Plan], float] = lambda plan: 1.0) -> None:
        config = scheduler.config
        self.scheduler = scheduler
        self.longest = min(config.context_length, config.blocks * config.block_size)
        self.model = CountingRunner(
            blocks=config.blocks,
            block_size=config.block_size,
            max_rows=config.max_rows,
            host_blocks=config.host_blocks,
            state_places=config.state_places,
        )
        self.model.scheduler = scheduler
        self.now = 0.0
        self.plans: list[Plan] = []
        self.settled: list[Step] = []
        self.output: defaultdict[int, list[int]] = defaultdict(list)  # drawn here, without earlier attempts
        self.finished: dict[int, str] = {}
        self.admitted: list[tuple[int, int]] = []
        self.expected: dict[int, tuple[list[int], str]] = {}
        self._step_s = step_s
        self._noise: dict[int, NDArray[np.float64]] = {}
        self._random: set[int] = set()
        self._outstanding: deque[tuple[Plan, Sampled]] = deque()

    def hold(self, image: HoldImage) -> None:
        pool, key = self.scheduler.images, self.scheduler.image_key(image.salt, image.digest)
        assert pool is not None, "it reads no images"
        self.model.images.forget(pool.make_room(key, image.features))
        pool.hold(key, image.features, self.model.images.hold(key, image.features, image.arrays))

    def drop(self, salt: str, digest: bytes) -> None:
        pool = self.scheduler.images
        assert pool is not None, "it reads no images"
        self.model.images.forget(pool.drop(self.scheduler.image_key(salt, digest)))

    def add(self, *requests: EngineRequest) -> None:
        for request in requests:
            refusal = self.scheduler.add(request, self.now)
            assert refusal is None, refusal
            max_tokens = min(request.max_tokens, self.longest - len(request.prompt))
            salt, _ = self.scheduler.image_key(request.salt, b"")
            prompt = self.model.images.in_prompt(request.prompt, salt, request.images)
            tokens, reason = counted(prompt, max_tokens, request.sampling)
            for choice in set(range(request.choices)) - set(request.done):
                earlier = request.outputs[choice] if choice < len(request.outputs) else ()
                assert tuple(tokens[: len(earlier)]) == tuple(earlier), "not what this model would have drawn"
                key = np.array([row_key(request.sampling.seed, choice)], np.uint64)
                indices = np.arange(len(earlier), len(tokens), dtype=np.int32)
                self.expected[request.handle + choice] = (tokens[len(earlier) :], reason)
                self._noise[request.handle + choice] = uniform(key, indices)
                if request.sampling.temperature > 0:
                    self._random.add(request.handle + choice)

    def abort(self, *handles: int) -> None:
        self.scheduler.abort(handles)
        self.scheduler.check()
        for handle in handles:
            self.expected.pop(handle, None)

    def step(self) -> Step | None:
        """Plan as far ahead as the depth allows, settle the oldest. None: there was nothing to compute."""
        self._plan_ahead()
        if self._outstanding:
            plan, drawn = self._outstanding.popleft()
            self.now += self._step_s(plan)
            settled = self.scheduler.settle(self.model.settle(drawn), self.now)
            self.scheduler.check()
            assert not self.model.faults, self.model.faults[0]
            random = self._random.intersection(settled.handles)
            if len(settled.handles) == len(plan.noise) and random:  # none dropped: they stand side by side
                place = Counter({handle: len(self.output[handle]) for handle in settled.handles})
                for handle, noise in zip(settled.handles, plan.noise.tolist(), strict=True):
                    assert noise == self._noise[handle][place[handle]], "another output's noise"
                    place[handle] += 1
        elif over := self.scheduler.take_finished():
            settled = Step([], [], over, [], [], self.scheduler.stats())
        else:
            return None
        self._note(settled)
        return settled

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def run(self, *requests: EngineRequest, most_steps: int = 5_000) -> None:
        """With these as well, until idle; then every row that was not aborted must have had what it has
        alone."""
        self.add(*requests)
        for _ in range(most_steps):
            if self.scheduler.idle:
                break
            assert self.step() is not None, "not idle, but nothing to compute: a deadlock"
        assert self.scheduler.idle, f"not idle after {most_steps} steps"
        stats = self.scheduler.stats()
        assert (stats.blocks_used, stats.rows_running, stats.rows_waiting) == (0, 0, 0)
        assert stats.free_rows == self.scheduler.config.max_rows
        for handle, (tokens, reason) in self.expected.items():
            assert self.output[handle] == tokens, handle
            assert self.finished.get(handle) == reason, handle

    def _plan_ahead(self) -> None:
        while len(self._outstanding) <= self.scheduler.config.pipeline_depth:
            plan = self.scheduler.plan(self.now)
            self.scheduler.check()
            if plan is None:
                return
            assert plan.token_count <= self.scheduler.config.max_step_tokens
            drafts = max(Counter(plan.row_slots.tolist()).values()) - 1
            assert drafts <= (self.scheduler.config.most_drafts or drafts), "too many draft tokens"
            self.plans.append(plan)
            self._outstanding.append((plan, self.model.launch(plan)))

    def _note(self, settled: Step) -> None:
        self.settled.append(settled)
        for handle, token in zip(settled.handles, settled.tokens, strict=True):
            assert handle not in self.finished, f"{handle}: a token after its end"
            self.output[handle].append(token)
        for handle, reason in settled.finished:
            assert handle not in self.finished, f"{handle} ended twice"
            self.finished[handle] = reason
        self.admitted += settled.admitted
