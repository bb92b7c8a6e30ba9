"""HTTP to the gateways of an arena: to any of them, until one answers."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx2

AGAIN_S = 0.1


class Door:
    """`tally`: what was done, for the report. `note(violation, kind)` keeps what is wrong."""

    def __init__(self, ports: Sequence[int], note: Callable[[str, str], None]) -> None:
        self.tally: Counter[str] = Counter()
        self.note = note
        self._ports = ports

    @contextlib.asynccontextmanager
    async def somewhere(
        self, source: random.Random, *, timeout_s: float = 5.0
    ) -> AsyncIterator[httpx2.AsyncClient]:
        """A new connection to one of them."""
        url = f"http://127.0.0.1:{source.choice(self._ports)}"
        async with httpx2.AsyncClient(base_url=url, timeout=timeout_s) as http:
            yield http

    async def ask(
        self, source: random.Random, method: str, path: str, *, allowed: Sequence[int] = (), **given: Any
    ) -> httpx2.Response:
        """The answer of the first that gives one: a success, or a status that is `allowed`."""
        while True:
            try:
                async with self.somewhere(source) as http:
                    answer = await http.request(method, path, **given)
                if answer.is_success or answer.status_code in allowed:
                    return answer
                if answer.status_code < 500:
                    raise AssertionError(f"{method} {path}: {answer.status_code} {answer.text:.300}")
            except httpx2.HTTPError:
                pass
            await asyncio.sleep(AGAIN_S)
