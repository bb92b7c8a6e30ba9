"""Renders pages for the process that has started this one: a request and a reply at a time, until standard
input ends. It begins with an empty line, once it can answer: a process that ends before has met no page.

It is a process of its own as PDFium is not thread-safe, and may die on a file; and none of multiprocessing's,
whose children run their parent's program again unless that guards itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import BinaryIO

from millstream.batch.media.media_folder import MediaFolder, MediaPage
from millstream.batch.media.pdf_pages import MachineProblem, PageProblem, rendered
from millstream.errors import MissingExtra

PAGE_TIMEOUT_S = 60.0
_NO_PROCESS = "no process that renders pages can be started"
_PASSED_ON = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # where Python's own libraries are, perhaps


class PageProcess:
    """The parent's side. It renders one page at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> PageProcess:
        """It gets no more environment than it begins with: that may have passwords, and PDF files are
        foreign. Raises MachineProblem.
        """
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-P", "-m", __name__)
        try:
            process = cls(
                await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=environment)
            )
        except OSError as error:
            raise MachineProblem(f"{_NO_PROCESS} ({error.strerror})") from error
        await process._begin()
        return process

    async def _begin(self) -> None:
        assert self._process.stdout is not None, "it is a pipe"
        try:
            async with asyncio.timeout(PAGE_TIMEOUT_S):
                await self._process.stdout.readuntil(b"\n")
        except (EOFError, OSError) as error:  # TimeoutError is one
            await self.end()
            raise MachineProblem(f"{_NO_PROCESS} (it ended, or took too long)") from error
        except BaseException:
            await self.end()
            raise

    async def render(self, page: MediaPage, folder: MediaFolder) -> bytes:
        """The page as an image file. Raises PageProblem if it cannot be rendered, MachineProblem; EOFError,
        OSError or TimeoutError if the process has to be ended because of it.
        """
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None, "it is a pipe"
        assert replies is not None, "it is a pipe"
        asked = [str(page.path), page.seen, page.page, folder.dpi, folder.page_format]
        async with asyncio.timeout(PAGE_TIMEOUT_S):
            requests.write(json.dumps(asked).encode() + b"\n")
            await requests.drain()
            size, problem, lacking = json.loads(await replies.readuntil(b"\n"))
            data = await replies.readexactly(size)
        if lacking:
            raise MachineProblem(lacking)
        if problem:
            raise PageProblem(problem)
        return data

    async def end(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await self._process.communicate()  # a reply that nobody has read would keep `wait` waiting


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    for line in requests:
        path, seen, page, dpi, page_format = json.loads(line)
        data, problem, lacking = b"", "", ""
        try:
            data = rendered(Path(path), tuple(seen), page, dpi, page_format)
        except PageProblem as error:
            problem = str(error)
        except MissingExtra as error:
            lacking = str(error)
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        except MachineProblem as error:
            lacking = error.what
        replies.write(json.dumps([len(data), problem, lacking]).encode() + b"\n" + data)
        replies.flush()


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends this one
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else prints
    replies.write(b"\n")
    replies.flush()
    serve(sys.stdin.buffer, replies)


if __name__ == "__main__":
    _main()
