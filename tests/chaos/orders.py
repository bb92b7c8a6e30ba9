"""What customers ask for: jobs of all kinds, each with the text that the counting engine must answer."""

from __future__ import annotations

import random
from typing import Any

from support.workers.counting_worker import counted

from chaos.ledger import Order
from millstream import Lane

# Numbers between are for poison: no text of an ordinary job passes them. 999 ends a row.
RANGES = ((0, 560), (700, 960))
LONGEST = 40
TENANTS = ("", "red", "green", "blue")


def draw(source: random.Random, own_id: str) -> Order:
    """An order of mixed shape; every draw comes from `source`."""
    low, high = source.choice(RANGES)
    first = source.randrange(low, high - LONGEST)
    length = source.choice((1, source.randrange(2, 10), source.randrange(10, LONGEST - 8)))
    choices = source.choice((1, 1, 1, 1, 2, 4))
    fields: dict[str, Any] = {
        "prompt": f"w{first}",
        "max_tokens": length,
        "n": choices,
        "stream": source.random() < 0.5,
        "lane": source.choice((Lane.BATCH, Lane.BATCH, Lane.INTERACTIVE)),
        "tenant": source.choice(TENANTS),
        "metadata": {"order": own_id},
    }
    stop = None
    if source.random() < 0.15 and first > 100 and length > 2:  # three digits: no word is the start of another
        stop = fields["stop"] = f"w{first + source.randrange(2, length + 1)}"
    texts = tuple(_until(stop, counted(first + 1 + choice, length)) for choice in range(choices))
    return Order(own_id, fields, texts)


def _until(stop: str | None, text: str) -> str:
    return text if stop is None else text.partition(stop)[0]
