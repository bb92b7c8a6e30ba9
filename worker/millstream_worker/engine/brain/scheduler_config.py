"""The scheduler's configuration, in its own units: tokens, blocks, seconds."""

from __future__ import annotations

from dataclasses import dataclass

from millstream_worker.engine.brain.batch.shared_prefixes import SharingCosts


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    max_rows: int
    max_step_tokens: int  # new tokens computed in one step
    block_size: int  # tokens
    blocks: int
    context_length: int  # most tokens of a row, prompt and output
    prefix_cache: bool  # without it, only the choices of one request share blocks
    hash_seed: bytes  # model, KV dtype: everything that changes the KV of equal tokens
    vocab_size: int = 0  # logits of a token; only for grammars and limits of tokens
    pipeline_depth: int = 0
    salted: bool = True  # blocks are shared only within one salt
    # costs of shared prefix reads; None: plans have no prefix groups
    sharing: SharingCosts | None = None
    patience_s: float = 10.0  # a row that has waited this long gets its turn in any lane
    step_time_target_s: float = 0.0  # of steps in which interactive rows decode; 0: any
    step_time_for_all: bool = False  # of steps in which any rows decode
    host_blocks: int = 0  # places in host memory for blocks of preempted rows
    host_blocks_a_step: int = 64  # copied each way
    host_block_s: float = 0.0  # time to copy one back
    state_places: int = 0  # for checkpoints of recurrent state; 0: the model has none
    speculate: str = "off"  # off | auto: draft tokens that pay | always: all that are likely
    image_bytes: int = 0  # of the features of images
    feature_bytes: int = 0  # of one of them; 0: the model reads no images
    most_drafts: int = 0  # of a row, in a step; 0: all that are guessed

    def __post_init__(self) -> None:
        for name in ("max_rows", "max_step_tokens", "block_size", "blocks", "context_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1 (got {getattr(self, name)})")
        if self.state_places and self.host_blocks:
            raise ValueError("a model with recurrent state has no host swap")
        if self.state_places and self.speculate != "off" and not self.most_drafts:
            raise ValueError("a recurrent state holds a bounded number of draft tokens: set most_drafts")
        if self.pipeline_depth not in (0, 1):
            raise ValueError(f"pipeline_depth must be 0 or 1 (got {self.pipeline_depth})")
