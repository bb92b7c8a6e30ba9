"""`millstream gateway`: OpenAI's API in front of queues."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from millstream.cli.embedded.stack import Stack, choose_model, open_stack
from millstream.cli.shared.command_run import reported
from millstream.cli.shared.exits import exit_code
from millstream.cli.shared.interrupts import run_async
from millstream.cli.shared.shared_options import Model
from millstream.errors import InvalidRequest, MillstreamError, MissingExtra
from millstream.gateway.gateway_settings import GatewaySettings

_PREFIX = "MILLSTREAM_GATEWAY_"
_SHARED = {
    name: f"MILLSTREAM_{name.upper()}" for name in ("redis_url", "files_url", "log_format", "log_level")
}  # with other programs
_LIBRARIES = (
    "starlette",
    "uvicorn",
    "prometheus_client",
    "obstore",
    "python_multipart",
    "uvloop",
    "structlog",
)


def gateway(model: Model = None, **given: Any) -> None:
    """Serve OpenAI's API over HTTP: chat completions, completions, files, batches and models."""
    redis_url = given["redis_url"]
    with reported(False, lambda: "stopped"):
        if bool(redis_url) == given["embedded"]:
            problem = "give the server of the queues, or else --embedded to run one with a worker"
            raise InvalidRequest("--redis-url", redis_url, problem)
        if any(importlib.util.find_spec(name) is None for name in _LIBRARIES):
            raise MissingExtra("gateway", "the HTTP gateway")
        settings = GatewaySettings(
            **{"redis_url": ""} | {name: value for name, value in given.items() if value not in (None, [])}
        )
        local = choose_model(redis_url, model)
        with open_stack(redis_url, local, queue=settings.queues[0]) as stack:
            _serve(settings.model_copy(update={"redis_url": stack.url}), stack)


def _serve(settings: GatewaySettings, stack: Stack) -> None:
    """The reason of its end is a line of the log, where that is for machines."""
    import structlog
    import uvloop

    from millstream.gateway.server import serve
    from millstream.logs import log_setup

    for_people = log_setup.configure(settings.log_format, settings.log_level)
    try:
        run_async(stack.guard(serve(settings)), loop_factory=uvloop.new_event_loop)
    except MillstreamError as error:
        if for_people:
            raise
        structlog.get_logger(__name__).error("gateway ends", reason=str(error))
        raise typer.Exit(exit_code(error)) from error


def _options() -> list[inspect.Parameter]:
    """One option for each setting, and that of the command itself. A list's is repeated, in the singular."""
    kind = inspect.Parameter.KEYWORD_ONLY
    made = []
    for name, field in GatewaySettings.model_fields.items():
        variable = _SHARED.get(name, f"{_PREFIX}{name.upper()}")
        own: dict[str, Any] = {"help": field.description, "envvar": variable}
        shown, default, annotation = name, field.default, field.annotation
        if get_origin(annotation) is tuple:
            shown, default, annotation = name.removesuffix("s"), None, list[str] | None
            own["show_default"] = ", ".join(field.default) or False
        elif get_origin(annotation) is Literal:
            annotation = _choices(get_args(annotation))
            default = annotation(default)
        elif field.is_required():
            default, annotation = None, str | None
        option = typer.Option(f"--{shown.replace('_', '-')}", **own)
        made.append(inspect.Parameter(name, kind, default=default, annotation=Annotated[annotation, option]))
    return [*made, inspect.signature(gateway, eval_str=True).parameters["model"].replace(kind=kind)]


def _choices(values: Sequence[str]) -> type[StrEnum]:
    """As typer takes them."""
    return StrEnum("Choices", {value: value for value in values})  # type: ignore[return-value]


gateway.__signature__ = inspect.Signature(_options())  # type: ignore[attr-defined]
