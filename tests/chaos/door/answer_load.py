"""Chat and text completions, whole and streamed, asked for again until they are there."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import httpx2
from support.workers.word_answers import counted

from chaos.door.answer import Asked, Heard
from chaos.door.door import AGAIN_S, Door
from millstream import MillstreamError, State

if TYPE_CHECKING:
    from chaos.arena import Arena

CLIENTS = 6
PAUSE_S = 0.2
PATIENCE_S = 20.0  # of a client that hears nothing
TRIES = 100  # of a client that waits after the end of the load
WORDS = (1, 100)
LAST_FIRST = 600  # so that no answer passes the last word
FRONT = "0-g"  # of ids of jobs that have an Idempotency-Key, on the first shard


class AnswerLoad:
    def __init__(self, arena: Arena, door: Door) -> None:
        self._arena = arena
        self._door = door
        self._asked: list[Asked] = []

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(self._client(random.Random(f"{self._arena.seed}/answers {number}")))

    async def judge(self) -> None:
        """One key is one answer and one job, which the server still has."""
        async with self._arena.client() as client:
            for asked in self._asked:
                for fault in await self._faults(client, asked):
                    self._door.note(f"{asked.path}, key {asked.key!r}: {fault}", "answer")
        known = {id.partition("-")[2] for asked in self._asked if asked.key for id in asked.ids}
        front = self._arena.shards[0].job(FRONT)
        keys = [key.decode() async for key in self._arena.admin.scan_iter(match=f"{front}*", count=1000)]
        found = {FRONT + key.removeprefix(front) for key in keys}
        if unheard := found - known:
            self._door.note(
                f"{len(unheard)} jobs of keys were nobody's answer: {sorted(unheard)[:2]}", "answer"
            )

    async def _faults(self, client: Any, asked: Asked) -> list[str]:
        if not asked.whole:
            return ["was never answered"]
        if asked.key is None:
            return []
        if len(asked.ids) > 1:
            return [f"one Idempotency-Key, and {len(asked.ids)} answers: {sorted(asked.ids)}"]
        try:
            result = await client.result(asked.job_id)
        except MillstreamError as error:
            return [f"its job is lost: {error!r}"]
        text = result.choices[0].text if result.state is State.COMPLETED else result.state
        return [] if text.split() == asked.text.split() else [f"its job came to {text[-60:]!r}"]

    async def _client(self, source: random.Random) -> None:
        while not self._arena.load.stopping:
            asked = self._draw(source)
            self._asked.append(asked)
            async with asyncio.TaskGroup() as group:  # at times two with one key
                for _ in range(2 if asked.key and source.random() < 0.2 else 1):
                    group.create_task(self._answered(random.Random(source.random()), asked))
            if asked.key and source.random() < 0.4:
                await self._answered(source, asked)
            await asyncio.sleep(source.expovariate(1 / PAUSE_S))

    def _draw(self, source: random.Random) -> Asked:
        first, count, seed = source.randrange(LAST_FIRST), source.randint(*WORDS), source.randrange(1000)
        chat, streamed = source.random() < 0.6, source.random() < 0.7
        word = f" w{first}"
        prompt = {"messages": [{"role": "user", "content": word}]} if chat else {"prompt": word}
        body = {"model": self._arena.queue, "max_tokens": count, "temperature": 1.0, "seed": seed} | prompt
        if streamed:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        path = "/v1/chat/completions" if chat else "/v1/completions"
        key = f"{source.getrandbits(64):016x}" if source.random() < 0.75 else None
        return Asked(path, body, counted(first, count, temperature=1.0, seed=seed).text, key)

    async def _answered(self, source: random.Random, asked: Asked) -> None:
        """Ask until it is, as clients repeat."""
        for number in range(TRIES):
            self._door.tally["answers repeated" if number else "answers asked for"] += 1
            headers = {"X-Stainless-Retry-Count": str(number)}
            if asked.key is not None:
                headers["Idempotency-Key"] = asked.key
            if await self._try(source, asked, headers) or asked.refused:
                return
            await asyncio.sleep(AGAIN_S)

    async def _try(self, source: random.Random, asked: Asked, headers: Mapping[str, str]) -> bool:
        """Perhaps the client goes before its end."""
        patience_s = source.uniform(0.0, 1.0) if source.random() < 0.1 else 3 * PATIENCE_S
        heard, cut = Heard(), False
        try:
            async with (
                asyncio.timeout(patience_s),
                self._door.somewhere(source, timeout_s=PATIENCE_S) as http,
                http.stream("POST", asked.path, json=asked.body, headers=headers) as answer,
            ):
                await self._hear(asked, answer, heard)
        except (TimeoutError, httpx2.HTTPError):
            cut = True
        asked.ids |= heard.ids
        if fault := heard.fault(asked, cut=cut):
            self._door.note(f"{asked.path}, key {asked.key!r}: {fault}", "answer")
        asked.whole += heard.done
        self._door.tally[_kind(asked, heard)] += 1
        return heard.done

    async def _hear(self, asked: Asked, answer: httpx2.Response, heard: Heard) -> None:
        if not answer.is_success:
            heard.refused = True
            if answer.status_code < 500:
                asked.refused = True
                text = (await answer.aread()).decode()
                self._door.note(
                    f"{asked.path}, key {asked.key!r}: {answer.status_code} {text:.300}", "answer"
                )
        elif asked.streamed:
            async for line in answer.aiter_lines():
                heard.take(line)
        else:
            heard.take_whole(json.loads(await answer.aread()))


def _kind(asked: Asked, heard: Heard) -> str:
    what = "streams" if asked.streamed else "whole answers"
    if heard.done:
        return f"{what} complete"
    if heard.refused:
        return f"{what} refused"
    return f"{what} ended by an error" if heard.error else f"{what} broken off"
