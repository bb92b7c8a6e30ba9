"""`millstream queue`: waiting and running jobs, their age, and the workers of a queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from millstream.cli.display.terminal import answers, print_json
from millstream.cli.queue.queue_page import Screen, queue_page
from millstream.cli.queue.queue_watch import watch_lines, watch_screen
from millstream.cli.shared.command_run import reported, run_with_client
from millstream.cli.shared.shared_options import AsJson, Queue, RedisUrl
from millstream.client.async_client import AsyncClient
from millstream.client.session.queue_status import QueueStatus
from millstream.errors import InvalidRequest


def queue(
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every 2 s, until Ctrl-C.")] = False,
    wide: Annotated[bool, typer.Option("--wide", help="All that is known of each worker.")] = False,
    redis_url: RedisUrl = None,
    queue: Queue = "default",
    as_json: AsJson = False,
    metrics_port: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve the queue's figures to Prometheus instead, until Ctrl-C or SIGTERM.",
        ),
    ] = None,
) -> None:
    """Show the queue's waiting and running jobs, their age, and its workers."""
    with reported(as_json, lambda: "stopped"):
        if metrics_port is not None and (watch or wide or as_json):
            problem = "serves the figures in place of a page; leave out --watch, --wide and --json"
            raise InvalidRequest("--metrics-port", metrics_port, problem)

        def show(status: QueueStatus) -> None:
            if as_json:
                print_json({"queue": status.queue} | asdict(status))  # its name in front
                return
            answers.out("\n".join(queue_page(status, _screen(wide=wide))))
            if watch:
                answers.out("")

        async def work(client: AsyncClient) -> None:
            status = await client.queue_info()
            if not watch:
                show(status)
            elif as_json or not answers.is_terminal:
                await watch_lines(client, status, show)
            else:
                await watch_screen(client, status, wide=wide)

        run_with_client(redis_url, queue, work if metrics_port is None else _exporter(queue, metrics_port))


def _exporter(queue: str, address: str) -> Callable[[AsyncClient], Awaitable[None]]:
    from millstream.cli.commands.queue_exporter import export_queue  # prometheus_client is not for all

    return partial(export_queue, queue=queue, address=address)


def _screen(*, wide: bool) -> Screen:
    """One line of a terminal is for the prompt; a page of blocks may be longer than it."""
    if not answers.is_terminal:
        return Screen(wide=wide)
    return Screen(answers.width, wide=True) if wide else Screen(answers.width, answers.height - 1)
