"""Answers that fit, through the real queue, worker and engine: a pydantic model in, objects out."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field
from support.models.spelling import spelling_checkpoint
from support.servers.servers import Server, free_port
from support.workers.counting_worker import worker_process

from millstream import Client, IncompleteAnswer, JobFailed

SETTINGS: dict[str, Any] = {"dtype": "float32", "device": "cpu", "threads": 1, "kv_memory": "4MiB"}


class Invoice(BaseModel):
    sender: str = Field(max_length=8)
    total: int = Field(ge=0, le=999)
    currency: Literal["EUR", "CHF"]
    items: list[Literal["flour", "bran"]] = Field(max_length=3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spelling_checkpoint(tmp_path_factory.mktemp("models"), max_position_embeddings=512)


def test_answers_fit_or_say_that_they_do_not(valkey: Server, model: Path) -> None:
    port = free_port()
    settings = SETTINGS | {"engine_command": "", "metrics_port": port}
    with Client(valkey.url) as client, worker_process(valkey, str(model), **settings):
        question: dict[str, Any] = {"prompt": "the quick brown fox", "temperature": 1.5}
        invoices = client.submit(**question, response_format=Invoice, n=3, max_tokens=300)
        plate = client.submit(**question, structured_outputs={"regex": "[A-C]{2}-[0-9]{3}"}, logprobs=True)
        cut = client.submit(**question, response_format=Invoice, max_tokens=5)
        stopped = client.submit(**question, structured_outputs={"choice": ["fox dog"]}, stop=["dog"])
        wrong = client.submit(**question, structured_outputs={"regex": "(a"})
        free = client.submit(**question, max_tokens=5)

        result = client.wait(invoices.id, timeout_s=60)
        assert all(isinstance(choice.parse(Invoice), Invoice) for choice in result.choices)
        assert [choice.complete for choice in result.choices] == [True] * 3

        [choice] = client.wait(plate.id, timeout_s=60).choices
        assert (choice.complete, choice.finish_reason) == (True, "stop")
        assert len(choice.logprobs or ()) == len(choice.token_ids)

        short = client.wait(cut.id, timeout_s=60)
        assert (short.choices[0].complete, short.choices[0].finish_reason) == (False, "length")
        with pytest.raises(IncompleteAnswer):
            short.parse(Invoice)

        [choice] = client.wait(stopped.id, timeout_s=60).choices
        assert (choice.text, choice.complete, choice.finish_reason) == ("fox ", False, "stop")

        with pytest.raises(JobFailed, match="regex parse error") as failed:
            client.wait(wrong.id, timeout_s=60)
        error = failed.value.result.error
        assert (error.code, error.field) == ("bad_request", "response_format")
        plain = client.wait(free.id, timeout_s=60)
        assert (plain.choices[0].complete, plain.timing.compiled_ms) == (None, None)

        times, status = result.timing, client.status(invoices.id)
        assert times.started_ms <= times.compiled_ms <= times.admitted_ms
        assert status.compiled_ms == times.compiled_ms
        metrics = scraped(port)
    assert metrics["request_grammar_wait_seconds_count"] == 4
    assert (metrics["grammars_compiled_total"], metrics["grammars_reused_total"]) == (3, 1)
    assert metrics["grammar_seconds_total"] > 0
    assert metrics["grammars_waiting"] == 0
    assert metrics["masked_rows_total"] > 0 < metrics["forced_tokens_total"]


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    found = re.findall(r"^millstream_(\w+)\{queue=\"default\"\} (\S+)$", page, re.MULTILINE)
    return {name: float(value) for name, value in found}


@pytest.mark.slow
def test_a_killed_workers_answer_still_fits(valkey: Server, model: Path) -> None:
    schema = {"type": "array", "items": {"enum": ["flour", "bran", "oats"]}, "minItems": 40, "maxItems": 40}
    answer = {"json": schema, "disable_any_whitespace": True}
    options: dict[str, Any] = {"structured_outputs": answer, "temperature": 1.5, "seed": 5}
    with Client(valkey.url) as client:
        job = client.submit("the quick", **options, stream=True)
        with worker_process(valkey, str(model), engine_command="", **SETTINGS) as first:
            for number, _ in enumerate(client.stream(job.id)):
                if number == 5:
                    os.kill(first.pid, signal.SIGKILL)
                    break
        with worker_process(valkey, str(model), engine_command="", lease_s=2, **SETTINGS):
            result = client.wait(job.id, timeout_s=90)
            again = client.wait(client.submit("the quick", **options).id, timeout_s=60)
    assert result.attempts == 2
    assert len(json.loads(result.text)) == 40
    assert (result.text, result.choices[0].complete) == (again.text, True)
