"""Valid things of the protocol as plain values, of every shape that there is: what mutations begin with."""

from __future__ import annotations

from random import Random
from typing import Any

from fuzz.values import some, subset
from millstream.wire.messages.job_messages import Timing

VOCAB = 1000  # of the counting model's tokenizer
STATES = ("queued", "running", "completed", "failed", "cancelled", "expired")
ENDS = STATES[2:]
IMAGE = "data:image/gif;base64,R0lGODlhAQABAAAAACw="
URLS = ("https://a.example/x.png", "/etc/passwd", "data:,", "data:image/png;base64,", "data:application/pdf,")


def request(chance: Random) -> dict[str, Any]:
    fields = subset(
        chance,
        {
            "version": 1,
            "sampling": sampling(chance),
            "lane": chance.choice(("batch", "interactive")),
            "deadline_ms": chance.randrange(1, 2**53),
            "tenant": chance.choice(("", "t", "tenant é")),
            "metadata": {"a": "b", "expected": "w1"},
            "stream": chance.random() < 0.5,
            "prediction": chance.choice(("w1 w2", "é", "")),
            "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01",
            "of_a_newer_version": [1, {"x": None}],
        },
        0.4,
    )
    return fields | job_input(chance)


def job_input(chance: Random) -> dict[str, Any]:
    match chance.randrange(3):
        case 0:
            return {"prompt": words(chance)}
        case 1:
            return {"messages": messages(chance)}
        case _:
            return {"token_ids": token_ids(chance)}


def messages(chance: Random) -> list[dict[str, Any]]:
    roles = ("user", "assistant", "system", "developer", "tool")
    return [{"role": chance.choice(roles), "content": words(chance)} for _ in range(chance.randrange(1, 4))]


def content(chance: Random) -> list[Any]:
    """Texts and images in any order, as OpenAI's API has them."""
    forms: tuple[Any, ...] = (
        "w1", {"type": "text", "text": words(chance)}, {"type": "image_url", "image_url": {"url": IMAGE}},
        {"type": "image_url", "image_url": {"url": IMAGE[:-4], "detail": "low"}},
        {"type": "input_image", "image_url": IMAGE}, {"type": "image", "image": IMAGE},
        {"type": "image_url", "image_url": {"url": chance.choice(URLS)}}, {"type": "video_url"},
    )  # fmt: skip
    return chance.choices(forms, (4, 4, 6, 2, 2, 2, 1, 1), k=chance.choice((1, 1, 2, 2, 3, 9)))


def request_of_images(chance: Random) -> dict[str, Any]:
    """Parts in any order; most name an image that there is."""
    files = [b"\x89PNG\r\n\x1a\n" + bytes([n]) for n in range(chance.choice((1, 1, 2, 3)))]
    parts: list[dict[str, Any]] = [{"image": n} for n in range(len(files))]
    parts += [{"text": words(chance)} for _ in range(chance.randrange(3))]
    parts += [{"image": chance.choice((0, 0, 1, 63, 64))}] if chance.random() < 0.2 else []
    chance.shuffle(parts)
    turn = {"role": chance.choice(("user", "user", "tool", "system")), "parts": parts}
    turn |= subset(chance, {"content": chance.choice(("", "w1"))}, 0.2)
    return {"messages": [*messages(chance), turn], "images": [{"data": file} for file in files]}


def sampling(chance: Random) -> dict[str, Any]:
    fields = {
        "max_tokens": chance.choice((1, 2, 16, 100, None)),
        "min_tokens": chance.choice((0, 1)),
        "temperature": chance.choice((0, 0.0, 0.7, 1.0, 10.0, 1e-300)),
        "top_p": chance.choice((1.0, 0.9, 1e-300, 5e-324)),
        "top_k": chance.choice((0, 1, 5, 999, 2**31 - 1)),
        "min_p": chance.choice((0.0, 0.1, 1.0)),
        "seed": chance.choice((0, 1, -1, 2**63 - 1, -(2**63), None)),
        "stop": some(chance, lambda c: c.choice(("w5", " ", "w1 w2", "é", "\n"))),
        "stop_token_ids": some(chance, lambda c: c.randrange(VOCAB)),
        "ignore_eos": True,
        "repetition_penalty": chance.choice((1.0, 1.2, 0.5, 10.0)),
        "presence_penalty": chance.choice((0.0, 2.0, -2.0)),
        "frequency_penalty": chance.choice((0.0, 0.5, -2.0)),
        "logit_bias": {str(chance.randrange(VOCAB)): chance.choice((-100.0, 100.0, 1.5))},
        "n": chance.choice((1, 1, 2, 16)),
        "bad_words": some(chance, lambda c: c.choice(("w5", "w1 w2", " ", "é"))),
        "allowed_token_ids": [0, *some(chance, lambda c: c.randrange(VOCAB))],
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "thinking_token_budget": chance.choice((0, 5)),
    }
    chosen = subset(chance, fields, 0.3)
    if chance.random() < 0.01:
        odd = ("9" * 19, "9" * 20, "9" * 5000, "-1", "1.0", "x", "", "²", "١٢", "0" * 30 + "5")
        chosen["logit_bias"] = {chance.choice(odd): 1.0}
    if chance.random() < 0.3:
        chosen |= {"logprobs": True, "top_logprobs": chance.choice((0, 1, 20))}
    return chosen


def delta(chance: Random) -> dict[str, Any]:
    return {"choices": [choice_delta(chance) for _ in range(chance.choice((0, 1, 1, 1, 2)))]}


def choice_delta(chance: Random) -> dict[str, Any]:
    ids = token_ids(chance, least=0)
    return subset(
        chance,
        {
            "index": chance.choice((0, 0, 1, 15)),
            "token_ids": ids,
            "text": words(chance),
            "logprobs": [token_logprob(chance) for _ in ids],
            "finish_reason": chance.choice(("stop", "length", None)),
        },
        0.6,
    )


def token_logprob(chance: Random) -> dict[str, Any]:
    one = {"token_id": chance.randrange(VOCAB), "token": "w1", "logprob": -chance.random()}
    one |= subset(chance, {"bytes": [0xE2, 0x82]}, 0.2)
    return one | {"top": [dict(one) for _ in range(chance.randrange(3))]}


def result(chance: Random) -> dict[str, Any]:
    return subset(
        chance,
        {
            "version": 1,
            "state": chance.choice(ENDS),
            "choices": some(chance, choice_delta, 2),
            "usage": {"prompt_tokens": 3, "cached_tokens": 0, "output_tokens": chance.randrange(100)},
            "error": {"code": "bad_request", "message": "no", "field": chance.choice(("prompt", None))},
            "timing": timing(chance),
            "model": "m",
            "weights": "int8",
            "kv_format": "int8",
            "attempts": 2,
            "seed": chance.randrange(-(2**63), 2**63),
            "metadata": {"a": "b"},
        },
        0.6,
    )


def timing(chance: Random) -> dict[str, Any]:
    times = tuple(Timing.model_fields)
    at = chance.randrange(2**41)
    return subset(chance, {name: at + step for step, name in enumerate(times)}, 0.8)


def words(chance: Random) -> str:
    return " ".join(f"w{chance.randrange(VOCAB)}" for _ in range(chance.randrange(1, 8)))


def token_ids(chance: Random, least: int = 1) -> list[int]:
    return [chance.randrange(VOCAB) for _ in range(chance.randrange(least, 8))]


def flat(fields: dict[bytes, bytes]) -> list[bytes]:
    """As a script answers a map."""
    return [part for pair in fields.items() for part in pair]


def number(value: int) -> bytes:
    return str(value).encode()
