"""The worker's settings: environment variables `MILLSTREAM_*`, and the same names as flags of
`millstream-worker`.

Only the service and the command line read them; everything else is given values. A flag wins over the
environment.
"""

from __future__ import annotations

import difflib
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from millstream.errors import InvalidRequest
from millstream.wire.connection import SCHEMES, Endpoint
from millstream.wire.connection.target import without_password
from millstream.wire.keys import QueueKeys
from millstream_worker.engine.config import EngineConfig
from millstream_worker.engine.sizes import share_of, size_bytes

PREFIX = "MILLSTREAM_"
_ALIKE = 0.8  # share of the letters that two names have in common: a slip, not another word
# Whether it is enough the engine says, once it has loaded the weights; what never is, is refused here.
_KV_MEMORY = re.compile(r"auto|\d*\.?\d+\s*(%|[kmgt]?i?b?)", re.IGNORECASE)

_LEAST_KV_BYTES = 64 * 1024  # the smallest models' blocks take more

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
    )

    redis_url: str = Field("redis://localhost:6379/0", description="Redis or Valkey server")
    server_check: Literal["warn", "strict", "off"] = Field(
        "warn", description="of the server's settings under which jobs can be lost; strict: refuse to serve"
    )
    queue: str = Field("default", description="queue to serve")
    shards: int | None = Field(
        None, ge=1, le=1024, description="shards of the queue; unset: as it was created"
    )
    name: str = Field(  # a server takes no other letters in the name of a connection
        "",
        max_length=64,
        pattern=r"^[!-~]*$",
        description="first part of the worker's name; unset: the host's name",
    )

    model: str = Field("", description="local folder, GGUF file or hub id (required)")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="of weights and KV cache"
    )
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda or cuda:N")
    threads: int = Field(0, ge=0, le=1024, description="CPU threads; 0: from the cores really available")
    kv_memory: str = Field("auto", description="KV cache: auto, bytes (2GiB) or share of what is free (0.6)")
    block_size: int = Field(16, ge=1, le=1024, description="tokens per KV block")
    max_rows: int = Field(64, ge=1, le=65_536, description="rows in the batch")
    max_step_tokens: int = Field(2048, ge=1, description="new tokens computed in one step")
    max_context: int = Field(0, ge=0, description="tokens per row, prompt and output; 0: the model's own")
    step_time_target_ms: int = Field(
        200,
        ge=0,
        le=600_000,
        description="while interactive rows decode, prompts are computed in pieces: a step takes about "
        "so long; 0: in whole ones",
    )
    step_time_for: Literal["interactive", "all"] = Field(
        "interactive", description="for whose decoding rows prompts are cut like that: interactive or all"
    )
    host_swap: str = Field(
        "0",
        description="host memory for KV blocks of preempted rows: auto (on a GPU), bytes (8GiB), or 0: none",
    )
    max_prompt_tokens: int = Field(0, ge=0, description="of one job; 0: what the context holds")
    max_output_tokens: int = Field(0, ge=0, description="of one choice; 0: what the context holds")
    max_result_bytes: int = Field(
        64 * 2**20,
        ge=2**16,
        le=2**28,  # a server takes no value above 512 MiB
        description="of one job's result, log-probabilities included; beyond it the job fails with its text",
    )
    prefix_cache: bool = Field(True, description="share the KV cache of equal prefixes")
    prefix_scope: Literal["tenant", "all"] = Field(
        "tenant", description="among whom: one tenant's jobs, or all, who can then probe each other's prompts"
    )
    attention: Literal["auto", "torch", "native", "triton"] = Field(
        "auto",
        description="attention backend: auto, torch, native (C++ on the CPU, linear layers too) or triton",
    )
    shared_attention: bool = Field(True, description="rows that begin alike read that once a step, together")
    cuda_graphs: Literal["auto", "on", "off"] = Field(
        "auto", description="replay recorded steps on a GPU: auto, on (or refuse to start) or off"
    )
    compile_model: Literal["auto", "on", "off"] = Field(
        "auto",
        description="compile the layers: on (at start), off, or auto: at start on a GPU; on the CPU after "
        "five busy minutes, and at start once `cache_dir` has the code",
    )
    cache_dir: str = Field(
        "", description="where converted checkpoints and compiled code are kept; unset: ~/.cache/millstream"
    )
    engine_command: str = Field("", description="program of the engine process; unset: Millstream's own")

    lease_s: Seconds = Field(
        30.0, description="a job whose lease is older may be taken over; the same for all workers of a queue"
    )
    renew_s: Seconds = Field(
        10.0, description="how often leases are renewed; the same for all workers of a queue"
    )
    grace_s: float = Field(30.0, ge=0, le=86_400, description="on SIGTERM: time for running jobs to finish")
    flush_ms: int = Field(
        40, ge=1, le=1000, description="how often the tokens of streamed jobs are published"
    )
    log_flush_s: Seconds = Field(1.0, description="how often the tokens of other jobs are written")
    result_ttl_s: float = Field(86_400.0, ge=1, le=366 * 86_400, description="how long results are kept")
    block_s: float = Field(1.0, ge=0.01, le=10, description="how long one read of an empty queue waits")
    max_attempts: int = Field(
        100,
        ge=1,
        le=1000,
        description="attempts after which a job is a dead letter, without those that died with their worker",
    )
    retry_backoff_s: Seconds = Field(
        5.0, description="pause before a job whose engine was lost is tried elsewhere; doubled with each loss"
    )
    retry_backoff_max_s: Seconds = Field(300.0, description="the longest such pause")
    max_died: int = Field(
        2, ge=1, le=100, description="deaths of engines and workers with a job after which it runs alone"
    )
    max_died_alone: int = Field(
        2, ge=1, le=100, description="deaths with it alone after which a job is a dead letter"
    )
    max_dead: int = Field(10_000, ge=1, description="dead letters kept")
    engine_restarts: int = Field(
        5, ge=0, description="starts in a row that may fail before the worker gives up"
    )
    progress_timeout_s: Seconds = Field(  # a step of a minute makes progress every few layers
        120.0, description="an engine that loads or computes and gets no further for so long is killed"
    )
    silence_timeout_s: float = Field(  # it says something every second
        60.0, ge=2, le=86_400, description="a loaded engine that is silent for so long is stuck, and killed"
    )
    stuck_s: Seconds = Field(
        120.0, description="a loop of the worker that makes no turn for so long is stuck: /healthz says so"
    )
    stuck_grace_s: Seconds = Field(60.0, description="so much later a worker that is stuck ends itself")
    lookahead: int = Field(16, ge=1, le=4096, description="jobs held ready beyond those in the batch")

    metrics_host: str = Field("127.0.0.1", description="address of /metrics, /healthz and /readyz")
    metrics_port: int = Field(0, ge=0, le=65_535, description="their port; 0: not served")
    log_format: Literal["auto", "json", "console"] = Field("auto", description="auto: console on a terminal")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug, info, warning or error"
    )
    log_payloads: bool = Field(False, description="log prompts and texts, too (with log level debug)")
    burst: bool = Field(False, description="end when the queue is empty")

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
        return EngineConfig(**{name: getattr(self, name) for name in EngineConfig.__slots__})


def load(arguments: Sequence[str] = ()) -> Settings:
    """Read flags and environment. Raises BadSettings with every bad setting at once; SystemExit on --help."""
    try:
        return Settings(_cli_parse_args=list(arguments))  # type: ignore[call-arg]  # pydantic-settings' own
    except ValidationError as error:
        raise BadSettings([_line(problem) for problem in error.errors(include_url=False)]) from error


def mistyped(environment: Mapping[str, str]) -> list[str]:
    """A line for each variable that looks like a setting and is none. Others with the prefix are left alone:
    programs that share the environment have some of their own, and Kubernetes adds those of its services."""
    known = [name.upper() for name in Settings.model_fields]
    lines = []
    for variable in sorted(environment):
        name = variable.upper().removeprefix(PREFIX)
        near = difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE)
        if variable.upper().startswith(PREFIX) and name not in known and near:
            lines.append(f"{variable} is no setting, and has no effect; did you mean {PREFIX}{near[0]}?")
    return lines


def _line(problem: ErrorDetails) -> str:
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if not problem["loc"]:
        return message
    name = str(problem["loc"][0])
    given = problem["input"]
    value = repr(without_password(given) if name == "redis_url" and isinstance(given, str) else given)
    return f"{name}: {message} (got {value:.500}); set {PREFIX}{name.upper()} or --{name.replace('_', '-')}"
