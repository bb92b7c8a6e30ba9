"""The engine's configuration at start, and its report about itself: plain values, which read no settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class EngineConfig:
    model: str  # local folder, GGUF file, or hub id
    dtype: str = "auto"  # auto | float32 | bfloat16 | float16
    weights: str = "auto"  # auto | int8 | fp8
    kv_dtype: str = "auto"  # auto | int8: of keys and values in the KV cache
    device: str = "auto"  # auto | cpu | cuda | cuda:N
    threads: int = 0  # torch threads on the CPU; 0: from the cores really available
    kv_memory: str = "auto"  # auto | bytes ("2GiB") | share of free memory ("0.6")
    block_size: int = 16  # tokens per KV block
    max_rows: int = 0  # rows in the batch; 0: 64, on a GPU up to 256
    max_step_tokens: int = 0  # new tokens computed in one step; 0: 2,048, on a GPU up to 8,192
    max_context: int = 0  # tokens per row, prompt and output; 0: the model's own
    step_time_target_ms: int = 200  # of steps in which rows decode, see step_time_for; 0: any
    step_time_for: str = "interactive"  # interactive | all: sequences whose decoding enforces it
    host_swap: str = "0"  # auto | bytes ("8GiB") | 0: host memory for blocks of preempted rows
    prefix_cache: bool = True
    prefix_scope: str = "tenant"  # tenant | all: sharing within one salt, or between all requests
    attention: str = "auto"  # auto | torch | native | triton
    speculate: str = "auto"  # auto | off | always: draft tokens, where they pay
    cuda_graphs: str = "auto"  # auto | on | off
    compile_model: str = "auto"  # auto | on | off; auto: on a GPU; on the CPU once it has been busy for long
    shared_attention: bool = True  # shared-prefix attention, where it is faster
    images: str = "auto"  # auto | off: of models that read them
    image_memory: str = "auto"  # auto | bytes ("512MiB"): of images that prompts under way have
    image_options: str = ""  # of the image processor, as JSON: {"size": {"longest_edge": 1536}}
    cache_dir: str = ""  # where converted checkpoints and compiled code are kept; "": ~/.cache/millstream


def cache_folder(chosen: str) -> Path:
    """The folder of `EngineConfig.cache_dir`. Raises ValueError if the default has no home folder."""
    try:
        return Path(chosen or "~/.cache/millstream").expanduser()
    except RuntimeError as error:  # no HOME, and a user id without a name
        raise ValueError(f"cache_dir {chosen!r}: {error}; set HOME, or MILLSTREAM_CACHE_DIR") from error


LABELS = ("model", "architecture", "dtype", "weights", "kv_format", "device", "attention")  # of an EngineInfo


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Properties of a loaded engine."""

    model: str  # name for results and metrics
    architecture: str
    dtype: str
    device: str
    attention: str
    vocab_size: int
    context_length: int  # most tokens a row can have
    eos_ids: tuple[int, ...]
    block_size: int
    blocks: int  # KV blocks in the pool
    max_rows: int
    kv_bytes_per_token: int
    parameters: int
    tokenizer: str  # folder that holds the tokenizer files
    weights: str = ""  # their format
    kv_format: str = ""  # of keys and values, as "bfloat16" or "int8"
    weight_bytes: int = 0
    digest: str = ""  # of the checkpoint, see `digest_of`; "": unknown
    self_check: str = ""  # what was checked on the device at start, and how far it was off
    fallbacks: tuple[str, ...] = ()  # what is slower than it could be, each with the reason
    images: bool = False  # it reads them
    image_memory: int = 0  # bytes of images that it holds at a time
    feature_bytes: int = 0  # of the features of one token of an image
    image_options: str = ""  # of its image processor, as JSON

    @property
    def labels(self) -> dict[str, str]:
        """The facts that tell engines apart, for logs and metrics."""
        return {name: getattr(self, name) for name in LABELS}

    @property
    def token_capacity(self) -> int:
        """KV tokens that the pool holds."""
        return self.blocks * self.block_size

    @property
    def longest_row(self) -> int:
        """Most tokens that a row can have here."""
        return min(self.context_length, self.token_capacity)
