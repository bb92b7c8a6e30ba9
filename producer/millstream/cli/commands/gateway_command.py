"""`millstream gateway`: OpenAI's API in front of queues."""

from __future__ import annotations

import importlib.util
import logging
from typing import Annotated

import typer

from millstream.cli.display.terminal import say
from millstream.cli.embedded.stack import choose_model, open_stack
from millstream.cli.shared.command_run import reported
from millstream.cli.shared.interrupts import run_async
from millstream.cli.shared.shared_options import Model
from millstream.errors import InvalidRequest, MissingExtra
from millstream.gateway.gateway_settings import DEFAULTS, GatewaySettings

_VARIABLE = "MILLSTREAM_GATEWAY_"
_LIBRARIES = ("starlette", "uvicorn", "prometheus_client", "obstore", "python_multipart", "uvloop")


def gateway(
    redis_url: Annotated[
        str | None,
        typer.Option("--redis-url", envvar="MILLSTREAM_REDIS_URL", help="The server of the queues."),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            envvar=f"{_VARIABLE}QUEUES",
            help="A queue to serve, as a model of this name; repeat it for several.",
            show_default="default",
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            envvar=f"{_VARIABLE}HOST", help="The address to listen on; others than loopback need keys."
        ),
    ] = DEFAULTS.host,
    port: Annotated[
        int, typer.Option(envvar=f"{_VARIABLE}PORT", help="The port; 0: any that is free.")
    ] = DEFAULTS.port,
    timeout_s: Annotated[
        float,
        typer.Option(envvar=f"{_VARIABLE}TIMEOUT_S", help="Longest wait for an answer that is not streamed."),
    ] = DEFAULTS.timeout_s,
    disconnect_grace_s: Annotated[
        float,
        typer.Option(
            envvar=f"{_VARIABLE}DISCONNECT_GRACE_S",
            help="How long a job outlives its client, for a repeated request to join it.",
        ),
    ] = DEFAULTS.disconnect_grace_s,
    grace_s: Annotated[
        float,
        typer.Option(envvar=f"{_VARIABLE}GRACE_S", help="How long requests may go on after SIGTERM."),
    ] = DEFAULTS.grace_s,
    max_body_bytes: Annotated[
        int, typer.Option(envvar=f"{_VARIABLE}MAX_BODY_BYTES", help="Longest body of a request.")
    ] = DEFAULTS.max_body_bytes,
    max_requests: Annotated[
        int,
        typer.Option(envvar=f"{_VARIABLE}MAX_REQUESTS", help="Most requests under way at once."),
    ] = DEFAULTS.max_requests,
    files_url: Annotated[
        str,
        typer.Option(
            envvar="MILLSTREAM_FILES_URL",
            help="Where all gateways keep files: a folder, or `s3://…`, `gs://…`, `az://…`.",
        ),
    ] = DEFAULTS.files_url,
    max_file_bytes: Annotated[
        int, typer.Option(envvar=f"{_VARIABLE}MAX_FILE_BYTES", help="Longest file that may be uploaded.")
    ] = DEFAULTS.max_file_bytes,
    max_batch_lines: Annotated[
        int, typer.Option(envvar=f"{_VARIABLE}MAX_BATCH_LINES", help="Most lines of a batch's input.")
    ] = DEFAULTS.max_batch_lines,
    batch_lease_s: Annotated[
        float,
        typer.Option(
            envvar=f"{_VARIABLE}BATCH_LEASE_S",
            help="How long a batch waits for its gateway, if that has died, until another goes on.",
        ),
    ] = DEFAULTS.batch_lease_s,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Run a server and a worker of its own, too.")
    ] = False,
    model: Model = None,
) -> None:
    """Serve OpenAI's API over HTTP: chat completions, completions, files, batches and models."""
    with reported(False, lambda: "stopped"):
        if bool(redis_url) == embedded:
            problem = "give the server of the queues, or else --embedded to run one with a worker"
            raise InvalidRequest("--redis-url", redis_url, problem)
        if any(importlib.util.find_spec(name) is None for name in _LIBRARIES):
            raise MissingExtra("gateway", "the HTTP gateway")
        import uvloop

        from millstream.gateway.server import serve

        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        queues = tuple(queue or ("default",))
        local = choose_model(redis_url, model, say)
        with open_stack(redis_url, local, say=say, queue=queues[0]) as stack:
            settings = GatewaySettings(
                redis_url=stack.url,
                queues=queues,
                host=host,
                port=port,
                timeout_s=timeout_s,
                disconnect_grace_s=disconnect_grace_s,
                grace_s=grace_s,
                max_body_bytes=max_body_bytes,
                max_requests=max_requests,
                files_url=files_url,
                max_file_bytes=max_file_bytes,
                max_batch_lines=max_batch_lines,
                batch_lease_s=batch_lease_s,
            )
            run_async(stack.guard(serve(settings, say)), loop_factory=uvloop.new_event_loop)
