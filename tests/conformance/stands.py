"""Gateways with a worker behind them, for a `with`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.gateway import gateway
from support.models.spelling import spelling_checkpoint
from support.servers.servers import Server, free_port
from support.workers.counting_worker import REAL, model_name, worker_process, write_tokenizer

from conformance.chat_templates import TEMPLATE
from conformance.environments import python_of

S3_SERVER = ["moto[s3]", "flask", "flask-cors"]
BUCKET = "conformance"
CONTEXT = 4096
CONTEXT_OF_LOOPS = (
    16_384  # their prompts are long, and a token of the tiny model is hardly more than a letter
)


@dataclass(frozen=True, slots=True)
class Stand:
    """`checkpoint`: the folder of the model that answers."""

    url: str
    checkpoint: Path


@contextlib.contextmanager
def tiny_model(
    template: str = TEMPLATE, context: int = CONTEXT, more_words: Iterable[str] = (), **changes: Any
) -> Iterator[Stand]:
    """A real engine with a tiny random model, whose tokens spell any text; `context`: in tokens;
    `changes`: of the worker's settings.
    """
    with Server("valkey") as server, tempfile.TemporaryDirectory() as folder:
        checkpoint = spelling_checkpoint(
            Path(folder),
            words=True,
            more_words=sorted(more_words),
            template=template,
            max_position_embeddings=context,
            head_dim=32,
        )
        settings = REAL | {"kv_memory": "64MiB", "lease_s": 30.0, "log_level": "error"} | changes
        with worker_process(server, str(checkpoint), **settings), gateway(server.url) as door:
            until_ready(door.url)
            yield Stand(door.url, checkpoint)


@contextlib.contextmanager
def vision_model(kind: str = "idefics3") -> Iterator[Stand]:
    """A real engine with a tiny random model that reads images. What it says of them means nothing."""
    from support.models.vision_checkpoints import build  # torch takes seconds, which the others do not need

    with Server("valkey") as server, tempfile.TemporaryDirectory() as folder:
        checkpoint = build(kind, Path(folder)).folder
        allow_length(checkpoint, CONTEXT_OF_LOOPS)
        settings = REAL | {"kv_memory": "64MiB", "lease_s": 30.0, "log_level": "error"}
        with worker_process(server, str(checkpoint), **settings), gateway(server.url) as door:
            until_ready(door.url)
            yield Stand(door.url, checkpoint)


def allow_length(checkpoint: Path, tokens: int) -> None:
    """olmOCR asks for 8,000 tokens of each page."""
    file = checkpoint / "config.json"
    config = json.loads(file.read_text())
    config["text_config"]["max_position_embeddings"] = tokens
    file.write_text(json.dumps(config))


@contextlib.contextmanager
def counting_model() -> Iterator[Stand]:
    """An engine that counts, and a store of files."""
    with Server("valkey") as server, tempfile.TemporaryDirectory() as folder:
        tokenizer = write_tokenizer(Path(folder), chat=True)
        with (
            worker_process(server, model_name(tokenizer), log_level="error"),
            s3() as url,
            gateway(server.url, "--files-url", url) as door,
        ):
            until_ready(door.url)
            yield Stand(door.url, tokenizer)


def until_ready(url: str) -> None:
    for _ in range(600):
        with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as answer:
            if any(one.get("ready") for one in json.load(answer)["data"]):
                return
        time.sleep(0.2)
    raise AssertionError("no worker came up")


@contextlib.contextmanager
def s3() -> Iterator[str]:
    """Where the gateway keeps files: a bucket of a stand-in for S3, for as long as it is needed."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    python = python_of("s3", S3_SERVER)
    process = subprocess.Popen(
        [str(python), "-m", "moto.server", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.environ |= {
        "AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any",
    }  # fmt: skip
    try:
        create_bucket(f"{address}/{BUCKET}")
        yield f"s3://{BUCKET}/files"
    finally:
        process.kill()
        process.wait()


def create_bucket(url: str) -> None:
    """As soon as the server is there."""
    scope = "Credential=any/20260101/us-east-1/s3/aws4_request"
    request = urllib.request.Request(
        url, method="PUT", headers={"Authorization": f"AWS4-HMAC-SHA256 {scope}"}
    )
    for _ in range(100):
        with contextlib.suppress(urllib.error.URLError), urllib.request.urlopen(request):
            return
        time.sleep(0.1)
    raise AssertionError(f"{url} cannot be created")
