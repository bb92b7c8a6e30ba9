"""Run by an interpreter that has a client of OpenAI's and nothing of Millstream: `openai_python.py URL`.
A worker that counts answers: the answer to "w5" is "w6 w7 …".
"""

from __future__ import annotations

import inspect
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import openai

ASK: dict[str, Any] = {"model": "default", "messages": [{"role": "user", "content": "w5"}], "max_tokens": 4}
TEXT = "w6 w7 w8 w9"


def main(url: str) -> None:
    print(f"openai {openai.__version__}")
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=2)
    until_ready(client)
    for check in (whole, streamed, completions, models, errors, repeats, files, batches):
        check(client)
        print(f"  {check.__name__} passed")
    client.close()


def until_ready(client: openai.OpenAI) -> None:
    for _ in range(300):
        if client.models.list().data[0].model_dump().get("ready"):
            return
        time.sleep(0.2)
    raise AssertionError("no worker came up")


def whole(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ASK, n=2, logprobs=True, top_logprobs=2, seed=7, temperature=0)
    assert answer.choices[0].message.content == TEXT
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens == 9
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.content or ()) == 4
    raw = client.chat.completions.with_raw_response.create(**ASK)
    assert raw.headers["x-request-id"].startswith("req_")


def streamed(client: openai.OpenAI) -> None:
    for n in (1, 3):
        told = client.chat.completions.create(**ASK, n=n, stream=True, stream_options={"include_usage": True})
        chunks = list(told)
        assert len({chunk.id for chunk in chunks}) == 1
        first = chunks[0].choices[0].delta
        assert (first.role, first.content) == ("assistant", "")
        parts = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == 0]
        assert "".join(part.delta.content or "" for part in parts) == TEXT
        assert parts[-1].finish_reason == "length"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 4 * n


def completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="counting", prompt="w5", max_tokens=4, logprobs=1, stop=["w9"])
    assert answer.choices[0].text.strip() == "w6 w7 w8"
    assert answer.choices[0].finish_reason == "stop"
    told = client.completions.create(model="default", prompt="w5", max_tokens=4, stream=True)
    assert "".join(chunk.choices[0].text for chunk in told) == TEXT


def models(client: openai.OpenAI) -> None:
    assert [one.id for one in client.models.list()] == ["default"]
    assert client.models.retrieve("counting").object == "model"


def errors(client: openai.OpenAI) -> None:
    for kind, change in (
        (openai.BadRequestError, {"temperature": "hot"}),
        (openai.BadRequestError, {"max_tokens": 10**6}),
        (openai.NotFoundError, {"model": "nobody/has-it"}),
    ):
        error = refusal(kind, partial(client.chat.completions.create, **{**ASK, **change}))
        assert error.param == next(iter(change)), error.param
        assert isinstance(error.code, str)
    begun_s = time.monotonic()
    absent = partial(client.embeddings.create, model="default", input="x")
    error = refusal(openai.InternalServerError, absent)
    assert (error.status_code, error.code) == (501, "not_implemented")
    assert time.monotonic() - begun_s < 0.4  # it did not try again


def repeats(client: openai.OpenAI) -> None:
    once = {"extra_headers": {"Idempotency-Key": f"key of {openai.__version__}"}}
    ids = {client.chat.completions.create(**ASK, **once).id for _ in range(2)}
    assert len(ids) == 1
    other = partial(client.chat.completions.create, **{**ASK, "max_tokens": 5}, **once)
    assert refusal(openai.ConflictError, other).code == "idempotency_key_reused"
    assert len({client.chat.completions.create(**ASK).id for _ in range(2)}) == 2


def files(client: openai.OpenAI) -> None:
    data = b"line\n" * 4_000_000  # more than one part
    made = [client.files.create(file=(name, data), purpose="batch") for name in ("a.jsonl", "b.jsonl")]
    assert client.files.wait_for_processing(made[0].id).status == "processed"
    assert (made[0].filename, made[0].bytes) == ("a.jsonl", len(data))
    pages = (
        {"limit": 1} if "limit" in inspect.signature(client.files.list).parameters else {}
    )  # 1.40 has none
    listed = [one.id for one in client.files.list(**pages)]
    assert listed[:2] == [one.id for one in made[::-1]]  # before those of other versions' batches
    assert len(listed) == len(set(listed))
    assert client.files.content(made[0].id).content == data
    part = client.files.content(made[0].id, extra_headers={"Range": "bytes=-3"})
    assert (part.response.status_code, part.content) == (206, b"ne\n")
    assert (
        refusal(openai.BadRequestError, partial(client.files.create, file=b"x", purpose="other")).param
        == "purpose"
    )
    for one in made:
        assert client.files.delete(one.id).deleted
        assert refusal(openai.NotFoundError, partial(client.files.content, one.id)).code == "not_found"


def batches(client: openai.OpenAI) -> None:
    lines = [
        {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": ASK}
        for number in range(5)
    ]
    lines[4] = {**lines[4], "body": {**ASK, "max_tokens": 10**6}}
    batch = batch_of(client, lines)
    assert (batch.status, batch.metadata, batch.errors) == ("validating", {"of": openai.__version__}, None)
    done = ended(client, batch.id)
    assert done.status == "completed", done
    assert done.request_counts is not None
    assert done.request_counts.model_dump() == {"total": 5, "completed": 4, "failed": 1}
    assert done.output_file_id is not None
    assert done.error_file_id is not None
    rows = [json.loads(line) for line in client.files.content(done.output_file_id).text.splitlines()]
    texts = {row["custom_id"]: row["response"]["body"]["choices"][0]["message"]["content"] for row in rows}
    assert texts == {f"r{number}": TEXT for number in range(4)}
    [error] = [json.loads(line) for line in client.files.content(done.error_file_id).text.splitlines()]
    assert (error["custom_id"], error["response"]["status_code"]) == ("r4", 400)
    failed = ended(client, batch_of(client, lines[:1] * 2).id)
    assert failed.status == "failed"
    assert failed.errors is not None
    assert [(one.line, one.code) for one in failed.errors.data or ()] == [(2, "duplicate_custom_id")]
    assert [one.id for one in client.batches.list(limit=1)][:2] == [failed.id, done.id]
    refusal(openai.ConflictError, partial(client.batches.cancel, done.id))
    refusal(openai.NotFoundError, partial(client.batches.retrieve, "batch_0"))


def batch_of(client: openai.OpenAI, lines: list[dict[str, Any]]) -> Any:
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    return client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"of": openai.__version__},
    )


def ended(client: openai.OpenAI, batch_id: str) -> Any:
    for _ in range(300):
        batch = client.batches.retrieve(batch_id)
        if batch.status not in ("validating", "in_progress", "finalizing", "cancelling"):
            return batch
        time.sleep(0.1)
    raise AssertionError("the batch does not end")


def refusal(kind: type[openai.APIStatusError], call: Callable[[], Any]) -> openai.APIStatusError:
    """The error with which the call ends."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"there was no {kind.__name__}")


if __name__ == "__main__":
    main(sys.argv[1])
