"""The worker's settings: environment variables `MILLSTREAM_*`, and the same names as flags of
`millstream-worker`.

Only the service and the command line read them; everything else receives values. A flag overrides the
environment.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import ByteSize, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, CliSettingsSource, SettingsConfigDict

from millstream.errors import InvalidRequest
from millstream.logs.log_setup import LogFormat, LogLevel
from millstream.model_path import problem_of
from millstream.wire.connection import SCHEMES, Endpoint
from millstream.wire.connection.target import without_password
from millstream.wire.keys import QueueKeys
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.sizes import share_of, size_bytes
from millstream_worker.start_options import START_OPTIONS

PREFIX = "MILLSTREAM_"
_ALIKE = 0.8  # share of equal letters by which an unknown name counts as a slip for a known one
# The engine checks whether it is enough, after loading the weights; impossible values are refused here.
_KV_MEMORY = re.compile(r"auto|\d*\.?\d+\s*(%|[kmgt]?i?b?)", re.IGNORECASE)

_LEAST_KV_BYTES = 64 * 1024  # the smallest models' blocks take more

_LEAST_IMAGE_BYTES = 2**20

Seconds = Annotated[float, Field(gt=0, le=86_400)]


class BadSettings(Exception):
    """One or more settings are wrong; `lines` has one readable line for each."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(lines))


class Settings(BaseSettings):
    """Settings of one worker process."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="ignore",
        validate_default=True,
        allow_inf_nan=False,
        cli_prog_name="millstream-worker",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        use_attribute_docstrings=True,
    )

    redis_url: str = "redis://localhost:6379/0"
    """URL of the Redis or Valkey server."""
    server_check: Literal["warn", "strict", "off"] = "warn"
    """Check of the server's persistence and memory settings: warn logs each one that can lose jobs, strict
    refuses to start, off skips the check."""
    queue: str = "default"
    """Name of the queue to serve."""
    shards: int | None = Field(None, ge=1, le=1024)
    """Number of shards of the queue; unset uses the number it was created with."""
    # a server allows no other characters in the name of a connection
    name: str = Field("", max_length=64, pattern=r"^[!-~]*$")
    """Prefix of the worker's name; unset uses the host name."""

    model: str = ""
    """Model to serve: a local folder, a GGUF file or a Hugging Face hub id (required)."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Data type of the weights and the KV cache; auto uses the checkpoint's own, or float32 where the device
    does not support it."""
    kv_dtype: Literal["auto", "int8"] = "auto"
    """Format of the KV cache: auto stores keys and values as they are computed, int8 in 8 bits with a scale
    for each token and head: nearly twice the tokens of bfloat16 in the same memory, and slightly different
    outputs; layers with a sliding window keep their own."""
    weights: Literal["auto", "int8", "fp8"] = "auto"
    """Format of the weights: auto keeps the checkpoint's; int8 on a CPU and fp8 on a GPU quantise them when
    they are loaded, in groups of 32 or by row with one scale each: half the memory, faster, and slightly
    different outputs."""
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """Device to compute on: auto, cpu, cuda or cuda:N."""
    threads: int = Field(0, ge=0, le=1024)
    """Number of CPU threads of the engine; 0 uses one per available physical core, or one beside a GPU. While
    other processes run on the cores, steps have fewer."""
    kv_memory: str = "auto"
    """Size of the KV cache: auto, bytes (2GiB) or a share of the free memory (0.6)."""
    block_size: int = Field(16, ge=1, le=1024)
    """Number of tokens per KV cache block."""
    max_rows: int = Field(0, ge=0, le=65_536)
    """Largest batch size: sequences that run at the same time; 0 uses 64, on a GPU up to 256: as many as
    the KV cache has 512 tokens for."""
    max_step_tokens: int = Field(0, ge=0)
    """Step token budget: most new tokens, prefill and decode, computed in one step; 0 uses 2,048, on a GPU
    up to 8,192: as many as leave the KV cache enough memory."""
    max_context: int = Field(0, ge=0)
    """Max model length: most tokens per sequence, prompt and output together; 0 uses the model's own
    limit."""
    step_time_target_ms: int = Field(200, ge=0, le=600_000)
    """Target duration of a step while interactive sequences decode; prefill is split into smaller chunks to
    meet it; 0 sets no target."""
    step_time_for: Literal["interactive", "all"] = "interactive"
    """Sequences whose decoding enforces step_time_target_ms: interactive ones only, or all."""
    host_swap: str = "0"
    """Host memory that keeps the KV blocks of preempted sequences: auto (none on a CPU), bytes (8GiB), or 0
    to recompute them."""
    max_prompt_tokens: int = Field(0, ge=0)
    """Most prompt tokens per job; 0 sets no limit below max_context."""
    max_output_tokens: int = Field(0, ge=0)
    """Most output tokens per choice; 0 sets no limit below max_context."""
    # a server takes no value above 512 MiB
    max_result_bytes: int = Field(64 * 2**20, ge=2**16, le=2**28)
    """Largest result of a job in bytes, log-probabilities included; a larger one fails the job, which keeps
    its text so far."""
    generation_config: Literal["auto", "off"] = "auto"
    """Sampling defaults of requests that leave a parameter unset: auto takes those of the checkpoint's
    generation_config.json, off takes none; must be equal on all workers of a queue."""
    prefix_cache: bool = True
    """Reuse of KV cache blocks between sequences that begin with the same tokens."""
    prefix_scope: Literal["tenant", "all"] = "tenant"
    """Jobs that share cached prefixes: those of one tenant, or all; with all, a tenant can detect other
    tenants' prompts by timing."""
    result_cache: ByteSize = Field(ByteSize(0), ge=0)
    """Bytes of the server, in each shard, that keep results for equal requests of a tenant with temperature 0
    or a seed, which are then computed once, also while they run (64MiB); each has at most 1 MiB. 0 computes
    each."""
    attention: Literal["auto", "torch", "native", "triton"] = "auto"
    """Attention backend: auto, torch, native (C++ for the CPU, linear layers included) or triton."""
    shared_attention: bool = True
    """Shared-prefix attention: a prefix that several sequences share is read once per step."""
    speculate: Literal["auto", "off", "always"] = "auto"
    """Speculative decoding: tokens guessed from the prompt and from earlier outputs are verified several a
    step, which changes outputs no more than other sequences in the batch do: auto where that is faster by
    the step times measured, always, or off."""
    cuda_graphs: Literal["auto", "on", "off"] = "auto"
    """Use of CUDA graphs: auto falls back to eager steps, on refuses to start without them, off disables
    them."""
    compile_model: Literal["auto", "on", "off"] = "auto"
    """Compilation of the model: on compiles at start, off disables it; auto compiles at start on a GPU, and
    on a CPU after a busy minute if its steps are short, or at start if cache_dir holds the compiled code."""
    images: Literal["auto", "off"] = "auto"
    """Images in messages: auto reads them where the model does and its type is among the tested ones; off
    serves text alone, and does not load what reads images."""
    image_memory: str = "auto"
    """Memory for the prepared images of jobs under way: auto uses 512MiB, 2GiB on a GPU, or bytes (1GiB); a
    job whose images take more is refused."""
    image_processes: int = Field(0, ge=0, le=256)
    """Number of images prepared at a time, each in a process of its own; 0 uses a quarter of the cores, and
    beside a GPU up to 8."""
    image_timeout_s: Seconds = 30.0
    """Seconds after which the process that prepares an image is killed; the second time refuses the image."""
    max_image_pixels: int = Field(100_000_000, ge=1, le=1_000_000_000)
    """Most pixels of an image, by its file's header; more are refused before anything is decoded."""
    image_options: str = ""
    """JSON object of values that replace those of the checkpoint's image processor, such as {"size":
    {"longest_edge": 1536}} for fewer tokens an image; must be equal on all workers of a queue."""
    cache_dir: str = ""
    """Folder of converted checkpoints and compiled code; unset uses ~/.cache/millstream."""
    engine_command: str = ""
    """Command that starts the engine process; unset starts Millstream's own engine."""

    lease_s: Seconds = 30.0
    """Age in seconds at which an unrenewed lease expires and other workers may take over the job; must be
    equal on all workers of a queue."""
    renew_s: Seconds = 10.0
    """Seconds between two renewals of a lease; must be equal on all workers of a queue."""
    grace_s: float = Field(30.0, ge=0, le=86_400)
    """Graceful shutdown period in seconds: time that running jobs get to finish after SIGTERM."""
    flush_ms: int = Field(40, ge=1, le=1000)
    """Milliseconds between two publications of the tokens of a streamed job."""
    log_flush_s: Seconds = 1.0
    """Seconds between two writes of the tokens of other jobs to their logs."""
    result_ttl_s: float = Field(86_400.0, ge=1, le=366 * 86_400)
    """Seconds that the server keeps a result."""
    block_s: float = Field(1.0, ge=0.01, le=10)
    """Seconds that a read of an empty queue blocks."""
    max_attempts: int = Field(100, ge=1, le=1000)
    """Most attempts per job before it becomes a dead letter; attempts that ended with their worker's death
    do not count."""
    retry_backoff_s: Seconds = 5.0
    """Seconds before a job whose engine died is retried; each further death doubles the delay."""
    retry_backoff_max_s: Seconds = 300.0
    """Longest retry delay in seconds."""
    max_died: int = Field(2, ge=1, le=100)
    """Number of engine or worker deaths with a job in the batch after which the job runs isolated."""
    max_died_alone: int = Field(2, ge=1, le=100)
    """Number of deaths in isolation after which a job becomes a dead letter."""
    max_dead: int = Field(10_000, ge=1)
    """Most dead letters kept per shard, and about 256 MiB of them; the oldest are removed first."""
    engine_restarts: int = Field(5, ge=0)
    """Number of consecutive failed engine starts that the worker retries before it exits."""
    # a step of a minute makes progress every few layers
    progress_timeout_s: Seconds = 120.0
    """Seconds without progress in loading or computing after which the engine is killed."""
    # it says something every second
    silence_timeout_s: float = Field(60.0, ge=2, le=86_400)
    """Seconds without a heartbeat from a loaded engine after which it is killed."""
    stuck_s: Seconds = 120.0
    """Seconds without a turn after which one of the worker's loops counts as stuck and /healthz fails."""
    stuck_grace_s: Seconds = 60.0
    """Seconds that a stuck worker waits before it exits with status 3."""
    lookahead: int = Field(16, ge=1, le=4096)
    """Number of prepared jobs held in addition to those in the batch."""

    metrics_host: str = "127.0.0.1"
    """Address that /metrics, /healthz and /readyz listen on."""
    metrics_port: int = Field(0, ge=0, le=65_535)
    """Port of /metrics, /healthz and /readyz; 0 disables them."""
    log_format: LogFormat = "auto"
    """Format of the log: json, console, or auto, which is console on a terminal and json elsewhere."""
    log_level: LogLevel = "info"
    """Lowest level that is logged: debug, info, warning or error."""
    log_payloads: bool = False
    """Logging of prompts and generated texts, at log level debug only."""
    burst: bool = False
    """Exit when the queue is empty."""

    @field_validator("queue")
    @classmethod
    def _queue_name(cls, queue: str) -> str:
        try:
            QueueKeys(queue)
        except InvalidRequest as error:
            raise ValueError(error.problem) from error
        return queue

    @field_validator("redis_url")
    @classmethod
    def _redis_scheme(cls, url: str) -> str:
        if not url.startswith(SCHEMES):
            raise ValueError(f"must begin with {', '.join(SCHEMES)}")
        try:
            Endpoint.of(url)
        except InvalidRequest as error:
            raise ValueError(error.problem) from error
        return url

    @field_validator("kv_memory")
    @classmethod
    def _kv_memory_readable(cls, size: str) -> str:
        if not _KV_MEMORY.fullmatch(size.strip()):
            raise ValueError("must be auto, a size (2GiB, 500MB) or a share of the free memory (0.6)")
        share, wanted = share_of(size), size_bytes(size)
        if not (0 < share <= 1 if share is not None else wanted is None or wanted >= _LEAST_KV_BYTES):
            raise ValueError("holds no KV block: give 64KiB or more, or a share above 0 and at most 1 (100%)")
        return size

    @field_validator("image_memory")
    @classmethod
    def _image_memory_readable(cls, size: str) -> str:
        wanted = None if size == "auto" else size_bytes(size)
        if size != "auto" and (wanted is None or wanted < _LEAST_IMAGE_BYTES):
            raise ValueError("must be auto, or a size of 1MiB or more (512MiB)")
        return size

    @field_validator("image_options")
    @classmethod
    def _image_options_readable(cls, options: str) -> str:
        try:
            readable = not options or isinstance(json.loads(options), dict)
        except ValueError:
            readable = False
        if not readable:
            raise ValueError('must be a JSON object, such as {"size": {"longest_edge": 1536}}')
        return options

    @field_validator("engine_command")
    @classmethod
    def _engine_command_readable(cls, command: str) -> str:
        try:
            shlex.split(command)
        except ValueError as error:
            raise ValueError(f"cannot be read as a command line: {error}") from error
        return command

    @field_validator("model")
    @classmethod
    def _model_given(cls, model: str) -> str:
        if not model:
            raise ValueError("is required: a local folder, a GGUF file or a hub id")
        if problem := problem_of(model):
            raise ValueError(problem)
        return model

    @model_validator(mode="after")
    def _lease_outlives_renewal(self) -> Self:
        if self.lease_s < 2 * self.renew_s:
            raise ValueError(
                f"lease_s {self.lease_s:g} is under twice renew_s {self.renew_s:g}: one late renewal would "
                "lose every job; set MILLSTREAM_LEASE_S or MILLSTREAM_RENEW_S"
            )
        return self

    @property
    def engine_argv(self) -> list[str]:
        """The engine process' command line, without its `--fd`."""
        return shlex.split(self.engine_command) or [sys.executable, "-m", "millstream_worker.engine"]

    def engine_config(self) -> EngineConfig:
        named = type(self).model_fields.keys() & set(EngineConfig.__slots__)  # others are a safer engine's
        return EngineConfig(**{name: getattr(self, name) for name in named})


def load(arguments: Sequence[str] = ()) -> Settings:
    """Read flags and environment. Raises BadSettings with every bad setting at once; SystemExit on --help."""
    try:
        command_line = CliSettingsSource[argparse.ArgumentParser](
            Settings, root_parser=_parser(), cli_parse_args=list(arguments)
        )
        return Settings(_cli_settings_source=command_line)  # type: ignore[call-arg]  # pydantic-settings' own
    except ValidationError as error:
        raise BadSettings([_line(problem) for problem in error.errors(include_url=False)]) from error


def _parser() -> argparse.ArgumentParser:
    """With the options of one start, for its help: they are taken out of the arguments before."""
    parser = argparse.ArgumentParser(
        prog="millstream-worker",
        allow_abbrev=False,
        usage="millstream-worker --model MODEL [--redis-url URL] [--SETTING VALUE ...]",
        description="Serve the jobs of one queue with one model. Each setting is also read from the "
        f"environment, as {PREFIX}…: {PREFIX}MODEL, {PREFIX}REDIS_URL.",
    )
    for name, text in START_OPTIONS.items():
        parser.add_argument(name, action="store_true", default=argparse.SUPPRESS, help=text)
    return parser


def mistyped(environment: Mapping[str, str]) -> list[str]:
    """A line for each variable that looks like a misspelt setting. Others with the prefix are ignored:
    programs that share the environment have some of their own, and Kubernetes adds those of its services.
    """
    known = [name.upper() for name in Settings.model_fields]
    lines = []
    for variable in sorted(environment):
        name = variable.upper().removeprefix(PREFIX)
        near = difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE)
        if variable.upper().startswith(PREFIX) and name not in known and near:
            lines.append(f"{variable} is not a setting and has no effect; did you mean {PREFIX}{near[0]}?")
    return lines


def _line(problem: ErrorDetails) -> str:
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if not problem["loc"]:
        return message
    name = str(problem["loc"][0])
    given = problem["input"]
    value = repr(without_password(given) if name == "redis_url" and isinstance(given, str) else given)
    return f"{name}: {message} (got {value:.500}); set {PREFIX}{name.upper()} or --{name.replace('_', '-')}"
