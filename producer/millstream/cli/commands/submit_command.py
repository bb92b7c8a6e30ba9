"""The request that `millstream submit` sends, and its output about the job."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.cli.commands.job_target import JobPlace
from millstream.cli.display.terminal import answers, print_json, say
from millstream.cli.display.transcript import Follower, print_result
from millstream.cli.embedded.stack import Stack
from millstream.cli.shared.command_run import load_model, warn_if_not_durable, warn_if_unserved
from millstream.cli.shared.schema_file import schema_text
from millstream.client.async_client import AsyncClient
from millstream.client.submit.submission import Submitted
from millstream.errors import InvalidRequest
from millstream.openai.structured_outputs import vllm_format
from millstream.wire.messages.response_format import ResponseFormat
from millstream.wire.messages.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class SubmitCommand:
    """`fields`: the arguments of `AsyncClient.submit`. `follow`, `wait`: how its answer is printed."""

    place: JobPlace
    fields: dict[str, Any]
    follow: bool
    wait: bool
    as_json: bool

    async def carry_out(self, stack: Stack, client: AsyncClient) -> None:
        job = await client.submit(**self.fields)
        self.place.job_id = job.id
        if self.follow:
            self.place.follower = Follower(job.id, as_json=self.as_json)
        warn_if_not_durable(job)
        if self.follow or self.wait:
            await self._show_answer(stack, client, job.id)
        else:
            self._show(job)

    async def _show_answer(self, stack: Stack, client: AsyncClient, job_id: str) -> None:
        say(f"job {job_id}")
        await warn_if_unserved(stack, self.place.queue, job_id)
        await load_model(stack)
        if self.place.follower is not None:
            await self.place.follower.follow(client)
        else:
            print_result(job_id, await client.wait(job_id), as_json=self.as_json)

    def _show(self, job: Submitted) -> None:
        if self.as_json:
            shown = ("id", "state", "created", "durability", "replicas")
            print_json({name: getattr(job, name) for name in shown})
            return
        answers.out(job.id)
        if not self.place.redis_url:
            say(f"it waits for a worker; for one, and the answer: millstream result {job.id} --wait")


def input_of(
    given: str,
    *,
    raw: bool,
    system: str | None,
    chat_template_kwargs: str | None,
    images: Sequence[Path] = (),
) -> dict[str, Any]:
    """One user message, its images before its text, or with `raw` the text to continue."""
    text = _standard_input() if given == "-" else given
    if not text:
        raise InvalidRequest("TEXT", text, "is empty; give at least one word")
    if raw:
        of_chat = {
            "--system": system,
            "--chat-template-kwargs": chat_template_kwargs,
            "--image": ", ".join(map(str, images)) or None,
        }
        for option, value in of_chat.items():
            if value is not None:
                raise InvalidRequest(option, value, "applies to the chat template; leave it out with --raw")
        return {"prompt": text}
    shown = [{"type": "image", "image": path} for path in images]
    content = [*shown, {"type": "text", "text": text}] if shown else text
    before = [] if system is None else [{"role": "system", "content": system}]
    return {
        "messages": [*before, {"role": "user", "content": content}],
        "chat_template_kwargs": _template_kwargs(chat_template_kwargs),
    }


def format_of(schema: Path | None, choice: list[str] | None, regex: str | None) -> ResponseFormat | None:
    """At most one of them is given."""
    given = {"json": None if schema is None else schema_text(schema), "choice": choice, "regex": regex}
    if not any(value is not None for value in given.values()):
        return None
    options = {"json": "--schema", "choice": "--choice", "regex": "--regex"}
    return vllm_format(given, options.__getitem__)


def _template_kwargs(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = f"is not JSON ({error}); write an object"
        raise InvalidRequest("--chat-template-kwargs", text, problem) from error


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidRequest("-", error.object[:40], "standard input is not UTF-8; convert it") from error


def parameters_of(given: list[str]) -> dict[str, Any]:
    """NAME=VALUE pairs; a value that is not JSON is a text."""
    parameters: dict[str, Any] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidRequest("--param", pair, "write NAME=VALUE")
        if name not in SamplingParams.model_fields:
            known = ", ".join(SamplingParams.model_fields)
            raise InvalidRequest("--param", name, f"no such sampling parameter; there are {known}")
        try:
            parameters[name] = json.loads(value)
        except ValueError:
            parameters[name] = value
    return parameters
