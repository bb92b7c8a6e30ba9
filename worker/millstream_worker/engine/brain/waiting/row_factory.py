"""Converts a request to its rows, or to the reason why it can never run here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count

import numpy as np
from numpy.typing import NDArray

from millstream_worker.engine.brain.batch.rows import Origin, Row
from millstream_worker.engine.brain.cache.block_hash import extend_chain, root_hash
from millstream_worker.engine.brain.images.feature_pool import FeaturePool
from millstream_worker.engine.brain.images.held_image import PlacedImage, RopePositions
from millstream_worker.engine.brain.scheduler_config import SchedulerConfig
from millstream_worker.engine.grammars.limited_matcher import LimitedMatcher
from millstream_worker.engine.grammars.matcher import Matcher
from millstream_worker.engine.grammars.token_limits import TokenLimits
from millstream_worker.engine.protocol.outputs import Refused
from millstream_worker.engine.protocol.request import EngineRequest

Rope = Callable[[NDArray[np.int32], Sequence[PlacedImage]], RopePositions]


class RowFactory:
    """`images`: those that prompts may have; None: the model reads none. `rope`: returns the positions of a
    prompt with images, for a model whose RoPE has several axes."""

    def __init__(
        self, config: SchedulerConfig, images: FeaturePool | None = None, rope: Rope | None = None
    ) -> None:
        self._config = config
        self._images = images
        self._rope = rope
        self._capacity = config.blocks * config.block_size  # tokens that the pool holds
        self._numbers = count()

    @property
    def longest(self) -> int:
        """Most tokens of a row, prompt and output."""
        return min(self._config.context_length, self._capacity)

    def refuse(self, request: EngineRequest) -> Refused | None:
        """The refusal of a request whose prompt and first token do not fit; `max_tokens` is clamped to the
        remaining room.
        """
        prompt = len(request.prompt)
        if prompt == 0:
            return Refused(request.handle, "prompt", "the prompt has no tokens; give at least one")
        if request.max_tokens < 1:
            problem = f"must be at least 1 (got {request.max_tokens})"
            return Refused(request.handle, "max_tokens", problem)
        if request.images and (
            self._images is None or self._images.missing(self._salt(request), request.images)
        ):
            return Refused(request.handle, "messages", "an image of its messages has not come here")
        if prompt < self.longest:
            return None
        if self._config.context_length <= self._capacity:
            limit = f"the model's context length is {self._config.context_length}"
            remedy = f"shorten it to {self.longest - 1} tokens or fewer"
        else:
            limit = f"this worker's KV cache holds {self._capacity} tokens"
            remedy = f"shorten it to {self.longest - 1} tokens or fewer, or give the worker more KV memory"
        problem = f"the prompt has {prompt} tokens and needs room for one more, but {limit}; {remedy}"
        return Refused(request.handle, "prompt", problem)

    def rows(self, request: EngineRequest, matchers: Mapping[int, Matcher] | None = None) -> list[Row]:
        """A row for each choice that has not ended in an earlier attempt; `matchers`: by choice."""
        prompt = np.array(request.prompt, dtype=np.int32)
        salt = self._salt(request)
        scopes = (salt,) if self._config.prefix_cache else (salt, str(request.handle))
        origin = Origin(request, prompt, root_hash(self._config.hash_seed, *scopes), [])
        if self._images is not None and request.images:
            origin.images = self._images.placed(salt, request.images)
            for placed in origin.images:
                block, within = divmod(placed.first, self._config.block_size)
                added = within.to_bytes(4, "little") + placed.image.key[1]
                origin.in_blocks[block] = origin.in_blocks.get(block, b"") + added
            origin.rope = self._rope(prompt, origin.images) if self._rope else None
        extend_chain(origin.chain, origin.root, prompt, self._config.block_size, origin.in_blocks)
        limits = (
            TokenLimits(request.limits, request.sampling, self._config.vocab_size) if request.limits else None
        )
        left = [choice for choice in range(request.choices) if choice not in request.done]
        return [self._row(origin, choice, (matchers or {}).get(choice), limits) for choice in left]

    def _salt(self, request: EngineRequest) -> str:
        return request.salt if self._config.salted else ""

    def _row(self, origin: Origin, choice: int, matcher: Matcher | None, limits: TokenLimits | None) -> Row:
        request = origin.request
        output = list(request.outputs[choice]) if choice < len(request.outputs) else []
        return Row(
            origin=origin,
            handle=request.handle + choice,
            choice=choice,
            arrival=next(self._numbers),
            max_output=min(request.max_tokens, self.longest - len(request.prompt)),
            end_ids=frozenset(request.sampling.end_ids),
            priority=request.priority,
            output=output,
            chain=origin.chain.copy(),
            matcher=matcher if limits is None else LimitedMatcher(limits, matcher, output),
        )
