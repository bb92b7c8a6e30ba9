"""The worker's settings: environment variables `MILLSTREAM_*`, and the same names as flags of
`millstream-worker`.

Only the service and the command line read them; everything else is given values. A flag wins over the
environment.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from millstream.errors import InvalidRequest
from millstream.wire.connection import Endpoint
from millstream.wire.keys import QueueKeys
from millstream_worker.engine.config import EngineConfig

PREFIX = "MILLSTREAM_"
_PASSWORD = re.compile(r"//[^@/]*@")
# What it means is for the engine to say, once it has loaded the weights: a slip is told before.
_KV_MEMORY = re.compile(r"auto|\d*\.?\d+\s*(%|[kmgt]?i?b?)", re.IGNORECASE)

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
    prefix_cache: bool = Field(True, description="share the KV cache of equal prefixes")
    attention: Literal["auto", "torch", "triton"] = Field(
        "auto", description="attention backend: auto, torch or triton"
    )
    cache_dir: str = Field("", description="where converted checkpoints are kept; unset: ~/.cache/millstream")
    engine_command: str = Field("", description="program of the engine process; unset: Millstream's own")

    lease_s: Seconds = Field(
        30.0, description="a job whose lease is older may be taken over by another worker"
    )
    renew_s: Seconds = Field(10.0, description="how often leases are renewed")
    grace_s: float = Field(30.0, ge=0, le=86_400, description="on SIGTERM: time for running jobs to finish")
    flush_ms: int = Field(
        40, ge=1, le=1000, description="how often the tokens of streamed jobs are published"
    )
    log_flush_s: Seconds = Field(1.0, description="how often the tokens of other jobs are written")
    result_ttl_s: float = Field(86_400.0, ge=1, le=366 * 86_400, description="how long results are kept")
    block_s: float = Field(1.0, ge=0.01, le=10, description="how long one read of an empty queue waits")
    max_attempts: int = Field(20, ge=1, le=1000, description="attempts after which a job is a dead letter")
    retry_backoff_s: Seconds = Field(
        5.0, description="pause before a job whose engine was lost is tried elsewhere"
    )
    max_died: int = Field(2, ge=1, le=100, description="crashes of its engine after which a job runs alone")
    max_dead: int = Field(10_000, ge=1, description="dead letters kept")
    engine_restarts: int = Field(
        5, ge=0, description="starts in a row that may fail before the worker gives up"
    )
    step_timeout_s: Seconds = Field(
        600.0, description="an engine that is longer in one step is stuck, and killed"
    )
    silence_timeout_s: float = Field(  # it says something every second
        60.0, ge=2, le=86_400, description="a loaded engine that is silent for so long is stuck, and killed"
    )
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
        if not url.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must begin with redis://, rediss:// or unix://")
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
        return size

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


def _line(problem: ErrorDetails) -> str:
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if not problem["loc"]:
        return message
    name = str(problem["loc"][0])
    value = _PASSWORD.sub("//***@", repr(problem["input"]))
    return f"{name}: {message} (got {value}); set {PREFIX}{name.upper()} or --{name.replace('_', '-')}"
