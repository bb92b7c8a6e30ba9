"""A client of whatever build is on the path, driven by lines on its standard input: see
`next_version.ForeignClient`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from millstream import AsyncClient, MillstreamError
from millstream.client.streaming.events import Transcript


async def call(client: AsyncClient, method: str, arguments: dict[str, Any]) -> Any:
    if method == "submit":
        return (await client.submit(**arguments)).id
    if method in ("wait", "choice"):
        choice = (await client.wait(arguments["job_id"], timeout_s=60)).choices[0]
        return choice.text if method == "wait" else choice.model_dump(mode="json")
    transcript = Transcript()
    async for event in client.stream(arguments["job_id"]):
        transcript.add(event)
    return transcript.text()


async def main(url: str, queue: str) -> None:
    async with AsyncClient(url, queue=queue) as client:
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                answer = ("ok", await call(client, *json.loads(line)))
            except MillstreamError as error:
                answer = (type(error).__name__, str(error))
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
