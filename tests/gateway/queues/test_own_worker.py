"""`millstream gateway --embedded`: what comes while its own worker loads the model waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from support.batches import answered, chat, files_of, finished, made
from support.commands import process
from support.workers.counting_worker import counted, model_name, write_tokenizer
from support.workers.fake_engine import COMMAND

ASK: dict[str, Any] = {"prompt": "w5", "max_tokens": 3}


@contextlib.contextmanager
def embedded(folder: Path, **options: object) -> Iterator[tuple[subprocess.Popen[str], openai.AsyncOpenAI]]:
    """The command with a worker that counts, and a client that does not ask twice, as soon as it listens."""
    (folder / "tokenizer").mkdir()
    model = model_name(write_tokenizer(folder / "tokenizer", chat=True), load_s=1, **options)
    arguments = ("gateway", "--embedded", "--model", model, "--port", 0, "--files-url", folder / "files")
    with process(*arguments, MILLSTREAM_HOME=folder, MILLSTREAM_ENGINE_COMMAND=COMMAND) as running:
        assert running.stderr is not None
        said = ""
        while not (found := re.search(r"gateway listens.*\"(http://[^\"]+)\"", said)):
            said += running.stderr.readline()
        yield running, openai.AsyncOpenAI(base_url=f"{found[1]}/v1", api_key="none", max_retries=0)


@pytest.mark.slow
async def test_requests_wait_while_the_model_is_loaded(tmp_path: Path) -> None:
    with embedded(tmp_path) as (running, opened):
        async with opened as client:
            line = chat(1, "w5", 3)
            line["body"]["model"] = "counting"  # a name that comes with the worker
            batch = await made(client, [line])
            asked = [client.completions.create(model=name, **ASK) for name in ("counting", "default")]
            for answer in await asyncio.gather(*asked):
                assert answer.choices[0].text == counted(6, 3)
            output, _ = await files_of(client, await finished(client, batch.id))
            assert answered(output) == {"r1": counted(6, 3)}
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=30) == 0


@pytest.mark.slow
async def test_a_model_that_cannot_be_loaded_is_503(tmp_path: Path) -> None:
    with embedded(tmp_path, broken="out of luck") as (running, opened):
        async with opened as client:
            with pytest.raises(openai.InternalServerError) as refused:
                await client.completions.create(model="default", **ASK)
        assert (refused.value.status_code, refused.value.code) == (503, "stopping")
        _, said = running.communicate(timeout=30)
        assert (running.returncode, "out of luck" in said) == (3, True), said
