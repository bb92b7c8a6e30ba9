"""`millstream gateway`: OpenAI's API in front of queues."""

from __future__ import annotations

import importlib.util
import inspect
import logging
from typing import Annotated, Any, get_origin

import typer

from millstream.cli.display.terminal import say
from millstream.cli.embedded.stack import choose_model, open_stack
from millstream.cli.shared.command_run import reported
from millstream.cli.shared.interrupts import run_async
from millstream.cli.shared.shared_options import Model
from millstream.errors import InvalidRequest, MissingExtra
from millstream.gateway.gateway_settings import GatewaySettings

_PREFIX = "MILLSTREAM_GATEWAY_"
_SHARED = {"redis_url": "MILLSTREAM_REDIS_URL", "files_url": "MILLSTREAM_FILES_URL"}  # with other programs
_LIBRARIES = ("starlette", "uvicorn", "prometheus_client", "obstore", "python_multipart", "uvloop")


def gateway(model: Model = None, **given: Any) -> None:
    """Serve OpenAI's API over HTTP: chat completions, completions, files, batches and models."""
    redis_url = given["redis_url"]
    with reported(False, lambda: "stopped"):
        if bool(redis_url) == given["embedded"]:
            problem = "give the server of the queues, or else --embedded to run one with a worker"
            raise InvalidRequest("--redis-url", redis_url, problem)
        if any(importlib.util.find_spec(name) is None for name in _LIBRARIES):
            raise MissingExtra("gateway", "the HTTP gateway")
        import uvloop

        from millstream.gateway.server import serve

        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        settings = GatewaySettings(
            **{"redis_url": ""} | {name: value for name, value in given.items() if value not in (None, [])}
        )
        local = choose_model(redis_url, model, say)
        with open_stack(redis_url, local, say=say, queue=settings.queues[0]) as stack:
            settings = settings.model_copy(update={"redis_url": stack.url})
            run_async(stack.guard(serve(settings, say)), loop_factory=uvloop.new_event_loop)


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
        elif field.is_required():
            default, annotation = None, str | None
        option = typer.Option(f"--{shown.replace('_', '-')}", **own)
        made.append(inspect.Parameter(name, kind, default=default, annotation=Annotated[annotation, option]))
    return [*made, inspect.signature(gateway, eval_str=True).parameters["model"].replace(kind=kind)]


gateway.__signature__ = inspect.Signature(_options())  # type: ignore[attr-defined]
