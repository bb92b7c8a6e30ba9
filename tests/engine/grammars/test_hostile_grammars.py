"""Response formats that are meant to hurt: each is refused with a reason, ends as failed, or works, and
nobody else's tokens change.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import ValidationError
from support.engine.hostile_formats import HOSTILE
from support.engine.whole_engine import answers, engine_on
from support.models import tokenizers
from support.models.spelling import spelling_checkpoint
from support.servers.servers import Server
from support.workers.counting_worker import worker_process

from millstream import Client, InvalidRequest, JobFailed
from millstream.wire.messages.response_format import ResponseFormat
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.request import EngineRequest, GrammarSpec, SamplingSpec

ENDS = {"complete", "stop", "length", "grammar_limit", "grammar_stuck"}
DEAR = {  # computed by the worker alone
    "an enum of 20,000",
    "the most choices",
    "3,000 required properties",
}
AT_SUBMIT = {
    "nested 5,000 deep": "nested too deep",
    "a byte more than 256 KiB": "at most 262144 characters",
    "20,000 choices": "1 to 10000 texts",
    "false": "which no answer can fit",
    "no JSON": "is no JSON",
    "a number": "must be a JSON schema",
    "NaN": "NaN is no JSON number",
    "a lone surrogate as it is": "unicode",
    "the empty text": "is empty",
    "3,000 optional properties": "properties that are not required",
    "300 wide alternatives": "properties that are not required",
    "10,000 rules": "has 9002 rules",
    "30 intersections": "T has",
}
REFUSED = {  # by the engine, with what the reason says
    "an object of false": "required property 'a' is unsatisfiable",
    "no string and no number": "incompatible types",
    "more than the most": r"minimum (5) is greater than maximum (4)",
    "a remote $ref": "leads out of the schema",
    "a $ref to a file": "leads out of the schema",
    "a $ref to nothing": "does not exist",
    "llguidance's own options": "no value fits",
    "a lone surrogate": "unexpected end of hex escape",
    "look-around": "regex parse error",
    "a missing rule": "unknown name",
    "nothing but itself": "no answer can fit it",
    "itself in a loop": "no answer can fit it",
    "nothing matches": "no answer can fit it",
}
FAILED = {"without an end"}


def wire(name: str) -> ResponseFormat | str:
    """The format as it is sent, or why it is not."""
    try:
        return ResponseFormat(**HOSTILE[name])
    except ValidationError as error:
        return str(error)


def test_what_needs_no_compiler_is_refused_at_submit() -> None:
    problems = {name: given for name in HOSTILE if isinstance(given := wire(name), str)}
    assert problems.keys() == AT_SUBMIT.keys()
    for name, said in AT_SUBMIT.items():
        assert said in problems[name], name


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine[Any]:
    return engine_on("cpu", spelling_checkpoint(tmp_path_factory.mktemp("models")))


def ends_beside(engine: Engine[Any], names: list[str], tokens: int) -> tuple[dict[str, str], list[int]]:
    """How each ends, and the tokens of a row without a format that runs all the while."""
    end = int(tokenizers.build("byte-level").token_to_id("<end>"))
    sampling = SamplingSpec(temperature=1.5, seed=1, end_ids=(end,))
    requests = [EngineRequest(1, tuple(range(30, 49)), 60, SamplingSpec(temperature=1.5, seed=1))]
    for handle, name in enumerate(names, 10):
        form = wire(name)
        assert not isinstance(form, str), form
        spec = GrammarSpec(form.type, form.text)
        requests.append(EngineRequest(handle, (40, 41), tokens, sampling, grammar=spec))
    made = answers(engine, requests)
    return {name: made.reasons[handle] for handle, name in enumerate(names, 10)}, made.tokens[1]


def judge(ends: dict[str, str], names: list[str]) -> None:
    assert ends.keys() == set(names)
    for name, end in ends.items():
        kind = HOSTILE[name]["type"]
        assert end in ENDS or end.startswith(f"response_format: {kind}: "), (name, end)
        assert len(end) < 700, name
    for name in REFUSED.keys() & set(names):
        assert REFUSED[name] in ends[name], (name, ends[name])
    for name in FAILED & set(names):
        assert ends[name] in ("grammar_limit", "grammar_stuck"), (name, ends[name])


@pytest.mark.slow
def test_each_ends_with_a_reason_and_changes_nobody_elses_tokens(engine: Engine[Any]) -> None:
    names = [name for name in HOSTILE if name not in DEAR | AT_SUBMIT.keys()]
    _, alone = ends_beside(engine, [], 24)
    ends, beside = ends_beside(engine, names, 24)
    judge(ends, names)
    assert beside == alone


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_worker_lives_and_others_finish(valkey: Server, tmp_path: Path) -> None:
    model = spelling_checkpoint(tmp_path, max_position_embeddings=512)
    settings: dict[str, Any] = {"dtype": "float32", "device": "cpu", "threads": 1, "kv_memory": "4MiB"}
    with (
        Client(valkey.url) as client,
        worker_process(valkey, str(model), engine_command="", **settings) as worker,
    ):
        client.wait(client.submit("the quick", max_tokens=2).id, timeout_s=90)
        [engine] = psutil.Process(worker.pid).children()
        jobs = {}
        for name, fields in HOSTILE.items():
            try:
                form = ResponseFormat(**fields)
                jobs[name] = client.submit("the quick", response_format=form, max_tokens=50)
            except (InvalidRequest, ValidationError):
                assert name in AT_SUBMIT
        plain = client.submit("the quick", max_tokens=50)
        assert client.wait(plain.id, timeout_s=60).state == "completed"
        for name, job in jobs.items():
            try:
                client.wait(job.id, timeout_s=120)
            except JobFailed as failed:
                error = failed.result.error
                assert error is not None
                assert error.code in ("bad_request", "grammar_limit", "grammar_stuck"), (name, error)
        assert [child.pid for child in psutil.Process(worker.pid).children()] == [engine.pid]
        assert engine.memory_info().rss < 1.5e9
        assert worker.poll() is None
