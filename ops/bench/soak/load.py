"""The soak's producers and readers, as a process of their own: a closed loop of tasks, each of which submits
a job, reads or polls or abandons it, and checks what comes of it, until standard input ends.

The engine counts: the answer to a prompt that ends with `w7` is `w8 w9 …` (choice i begins i further on), so
a token that is lost, repeated or another job's is a wrong text. With another engine (`--any-text`) only
streams are compared with results. Prints its tally as a JSON line every second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections import Counter
from dataclasses import dataclass

from ops.bench.stand_ins.counting import WORDS

from millstream import (
    AsyncClient,
    ClientOptions,
    JobCancelled,
    JobError,
    JobExpired,
    JobFailed,
    JobFields,
    MillstreamError,
    NotReady,
    RewindEvent,
    TokenEvent,
)

QUEUE = "soak"
GIVE_UP_S = 300.0  # for one job's end: after that it counts as lost


@dataclass(frozen=True, slots=True)
class Job:
    """A request, and its producer's behaviour."""

    first: int
    prompt_words: int
    tokens: int
    choices: int
    stream: bool
    interactive: bool
    deadline_s: float | None
    habit: str  # wait | read | resume | poll | cancel | vanish

    @classmethod
    def draw(cls, dice: random.Random, huge_words: int) -> Job:
        huge = dice.random() < 0.01
        habit = dice.choices(("wait", "read", "resume", "poll", "cancel", "vanish"), (30, 30, 10, 15, 10, 5))[
            0
        ]
        return cls(
            first=dice.randrange(WORDS),
            prompt_words=huge_words if huge else dice.choice((1, 1, 4, 40)),
            tokens=dice.choice((1, 4, 4, 16, 16, 64, 256)),
            choices=dice.choice((2, 4)) if dice.random() < 0.1 else 1,
            stream=habit in ("read", "resume") or dice.random() < 0.2,
            interactive=dice.random() < 0.2,
            deadline_s=dice.uniform(0.05, 3.0) if dice.random() < 0.05 else None,
            habit=habit,
        )

    def fields(self) -> JobFields:
        words = [f"w{(self.first - back) % WORDS}" for back in range(self.prompt_words - 1, -1, -1)]
        return {
            "prompt": " ".join(words),
            "max_tokens": self.tokens,
            "n": self.choices,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": self.stream,
            "lane": "interactive" if self.interactive else "batch",
            "deadline_s": self.deadline_s,
        }

    def text(self, choice: int) -> str:
        first = self.first + choice + 1
        return " ".join(f"w{token % WORDS}" for token in range(first, first + self.tokens))


class Load:
    """`tasks` jobs are under way at any time."""

    def __init__(self, client: AsyncClient, dice: random.Random, *, huge_words: int, any_text: bool) -> None:
        self.tally: Counter[str] = Counter()
        self.stopping = False
        self._client = client
        self._dice = dice
        self._huge_words = huge_words
        self._any_text = any_text

    async def run(self, tasks: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(tasks):
                group.create_task(self._produce())

    async def _produce(self) -> None:
        while not self.stopping:
            job = Job.draw(self._dice, self._huge_words)
            [outcome] = await self._client.submit_many([job.fields()], wait_s=60)
            if isinstance(outcome, MillstreamError):  # not accepted, or unknown: nobody waits for it
                self.tally[f"submit {type(outcome).__name__}"] += 1
                continue
            self.tally["submitted"] += 1
            await self._follow(job, outcome.id)

    async def _follow(self, job: Job, job_id: str) -> None:
        streamed: str | None = None
        try:
            async with asyncio.timeout(GIVE_UP_S):
                streamed = await self._behave(job, job_id)
                result = await self._client.wait(job_id)
        except TimeoutError:
            self._complain("lost", job_id, f"has not ended within {GIVE_UP_S:g} s")
        except (JobCancelled, JobExpired) as error:
            self.tally["cancelled" if isinstance(error, JobCancelled) else "expired"] += 1
            self._check(job, job_id, error.result.choices if error.result else (), streamed, whole=False)
        except JobFailed as error:
            self._complain(f"failed {error.reason}", job_id, str(error))
        except JobError as error:
            self._complain("lost", job_id, str(error))
        else:
            self.tally["completed"] += 1
            self.tally["tokens"] += result.usage.output_tokens
            self.tally["taken up again"] += result.attempts > 1
            self._check(job, job_id, result.choices, streamed, whole=True)

    async def _behave(self, job: Job, job_id: str) -> str | None:
        """As its producer does; answers the first choice's streamed text where it was read to its end."""
        match job.habit:
            case "read":
                return await self._read(job_id, breaks=False)
            case "resume":
                return await self._read(job_id, breaks=True)
            case "poll":
                await self._poll(job_id)
            case "cancel":
                await asyncio.sleep(self._dice.uniform(0.0, 0.5))
                await self._client.cancel(job_id)
            case "vanish":
                events = self._client.stream(job_id)
                await anext(events)
                await events.aclose()
        return None

    async def _read(self, job_id: str, *, breaks: bool) -> str:
        """To the end; with `breaks`, leaving after every few events and coming back by the cursor."""
        texts: list[str] = []
        cursor: str | None = None
        while True:
            left = self._dice.randint(1, 3) if breaks else sys.maxsize
            events = self._client.stream(job_id, cursor)
            async for event in events:
                cursor = event.cursor
                if isinstance(event, TokenEvent):
                    texts += [event.text]
                elif isinstance(event, RewindEvent):
                    del texts[event.seq :]
                else:
                    self.tally["streams read"] += 1
                    return "".join(texts)
                left -= 1
                if not left:
                    break
            await events.aclose()

    async def _poll(self, job_id: str) -> None:
        pause_s = 0.05
        while True:
            try:
                await self._client.result(job_id)
            except NotReady:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, 1.0)
            except (JobCancelled, JobExpired, JobFailed):
                return
            else:
                return

    def _check(self, job: Job, job_id: str, choices: object, streamed: str | None, *, whole: bool) -> None:
        assert isinstance(choices, tuple)
        texts = {choice.index: choice.text for choice in choices}
        if streamed is not None and streamed != texts.get(0, ""):
            self._complain("wrong stream", job_id, f"{streamed!r:.200} is not {texts.get(0)!r:.200}")
        if self._any_text:
            return
        if whole and texts != {index: job.text(index) for index in range(job.choices)}:
            self._complain("wrong text", job_id, f"{texts!r:.300}")
        if not whole and any(not job.text(index).startswith(text) for index, text in texts.items()):
            self._complain("wrong text", job_id, f"{texts!r:.300}")

    def _complain(self, kind: str, job_id: str, what: str) -> None:
        self.tally[kind] += 1
        sys.stderr.write(f"{kind}: {job_id}: {what}\n")


async def _main(options: argparse.Namespace) -> None:
    settings = ClientOptions(result_ttl_s=options.result_ttl_s, timeout_s=30.0, name="soak-load")
    async with AsyncClient(options.url, queue=QUEUE, options=settings) as client:
        dice = random.Random(options.seed)
        load = Load(client, dice, huge_words=options.huge_words, any_text=options.any_text)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(load.run(options.tasks))
            group.create_task(_stop_at_end_of_input(load))
            while not running.done():
                await asyncio.wait([running], timeout=1.0)
                print(json.dumps(dict(load.tally)), flush=True)
        print(json.dumps(dict(load.tally) | {"over": 1}), flush=True)


async def _stop_at_end_of_input(load: Load) -> None:
    await asyncio.to_thread(sys.stdin.read)
    load.stopping = True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--tasks", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--huge-words", type=int, default=20_000)
    parser.add_argument("--result-ttl-s", type=float, default=60.0)
    parser.add_argument("--any-text", action="store_true")
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
