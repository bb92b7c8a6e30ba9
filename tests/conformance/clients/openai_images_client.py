"""openai with images: `openai_images_client.py URL CHECKPOINT`, by an interpreter that has it and Pillow, and
nothing of Millstream. The model is random: what it says is not judged.
"""

from __future__ import annotations

import base64
import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import openai
from PIL import Image


def main(url: str, checkpoint: str) -> None:
    print(f"openai {openai.__version__}")
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=2)
    for check in (whole, streamed, batches, refused):
        check(client)
        print(f"  {check.__name__} passed")
    special_tokens(client, Path(checkpoint))
    print("  special_tokens passed")


def page(colour: str, kind: str = "PNG") -> str:
    """A page as a data: URL."""
    out = io.BytesIO()
    Image.new("RGB", (60, 90), colour).save(out, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(out.getvalue()).decode()}"


def asked(*urls: str, **fields: Any) -> dict[str, Any]:
    images = [{"type": "image_url", "image_url": {"url": url, "detail": "high"}} for url in urls]
    content = [*images, {"type": "text", "text": "Read this page."}]
    fields = {"max_tokens": 12, "temperature": 0, **fields}
    return {"model": "default", "messages": [{"role": "user", "content": content}], **fields}


def whole(client: openai.OpenAI) -> None:
    texts = []
    for urls in ([page("red")], [page("blue", "JPEG")], [page("red"), page("blue", "WEBP")], [page("red")]):
        answer = client.chat.completions.create(**asked(*urls))
        assert answer.choices[0].finish_reason in ("length", "stop")
        assert answer.usage is not None
        assert answer.usage.prompt_tokens > 20 * len(urls)
        texts.append(answer.choices[0].message.content)
    assert all(texts)
    assert texts[0] == texts[3]
    assert texts[0] != texts[1], "it has not seen the page"


def streamed(client: openai.OpenAI) -> None:
    request = asked(page("green"))
    chunks = list(
        client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == client.chat.completions.create(**request).choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12
    assert any(chunk.choices and chunk.choices[0].finish_reason == "length" for chunk in chunks)


def batches(client: openai.OpenAI) -> None:
    colours = ("red", "green", "blue")
    lines = [
        {"custom_id": colour, "method": "POST", "url": "/v1/chat/completions", "body": asked(page(colour))}
        for colour in colours
    ]
    broken = {**lines[0], "custom_id": "broken", "body": asked(page("red")[:-40])}
    data = "".join(json.dumps(line) + "\n" for line in [*lines, broken]).encode()
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    for _ in range(600):
        if (batch := client.batches.retrieve(batch.id)).status in ("completed", "failed"):
            break
        time.sleep(0.1)
    assert batch.status == "completed", batch
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 4, "completed": 3, "failed": 1}
    rows = [json.loads(line) for line in client.files.content(batch.output_file_id or "").text.splitlines()]
    answers = {row["custom_id"]: row["response"]["body"]["choices"][0]["message"]["content"] for row in rows}
    for colour in colours:
        alone = client.chat.completions.create(**asked(page(colour)))
        assert answers[colour] == alone.choices[0].message.content, colour


def refused(client: openai.OpenAI) -> None:
    for url, said in (("https://127.0.0.1/page.png", "URL"), (page("red")[:-40], "image")):
        error = refusal(client, url)
        assert error.param in ("messages[0].content[0].image_url.url", "messages[0].content[0]"), error.param
        assert said in error.message, error.message


def refusal(client: openai.OpenAI, url: str) -> openai.BadRequestError:
    try:
        client.chat.completions.create(**asked(url))
    except openai.BadRequestError as error:
        return error
    raise AssertionError(f"{url[:30]} was not refused")


def special_tokens(client: openai.OpenAI, checkpoint: Path) -> None:
    """Those that DocTags and tables are made of."""
    added = json.loads((checkpoint / "tokenizer.json").read_text("utf-8"))["added_tokens"]
    shown = {one["id"]: one["content"] for one in added if one["content"].startswith("<row_")}
    request = asked(page("red"))
    forced = {"allowed_token_ids": list(shown)}
    for skip in (True, False):
        answer = client.chat.completions.create(**request, extra_body={**forced, "skip_special_tokens": skip})
        text = answer.choices[0].message.content or ""
        assert text == "" if skip else any(text.startswith(one) for one in shown.values()), text


if __name__ == "__main__":
    main(*sys.argv[1:])
