"""Prompts whose answers repeat what stands in them, as chats, made from the demo's letters and notices."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

DOCUMENTS = Path(__file__).parents[2] / "demo" / "documents.jsonl"
COPY = "Repeat the following text word by word.\n\n"
EXTRACT = "List each name, date and number in the following text, one per line.\n\n"
SHARED_ROWS = 200  # questions about one document
_OPENING = 6  # words of a letter by which a question names it

Prompt = tuple[int, ...]


def prompts_of(tokenizer: Any, task: str, rows: int) -> list[Prompt]:
    """`copy` and `extract`: documents of one to four letters each, all different. `shared`: questions about
    one document with all the letters."""
    letters, draw = _letters(), random.Random(0)
    if task == "shared":
        return [_chat(tokenizer, _question(letters, number)) for number in range(rows)]
    head = {"copy": COPY, "extract": EXTRACT}[task]
    documents = ["\n\n".join(draw.sample(letters, 1 + number % 4)) for number in range(rows)]
    return [_chat(tokenizer, head + document) for document in documents]


def _question(letters: list[str], number: int) -> str:
    opening = " ".join(letters[number % len(letters)].split()[:_OPENING])
    first = number // len(letters)
    asked = ("Repeat", "Copy", "Quote", "Write down", "Give", "Show", "Print", "Type")[first % 8]
    return "\n\n".join(letters) + f'\n\n{asked} the paragraph that begins with "{opening}".'


def _chat(tokenizer: Any, content: str) -> Prompt:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def _letters() -> list[str]:
    prompts = (json.loads(line)["body"]["prompt"] for line in DOCUMENTS.read_text("utf-8").splitlines())
    found = (re.findall(r"^(?:Letter|Notice): (.+)$", prompt, re.MULTILINE) for prompt in prompts)
    return list(dict.fromkeys(letter for letters in found for letter in letters))
