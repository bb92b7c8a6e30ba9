"""Reads the files of lines when these are sent: image files in threads, pages of PDF files in processes."""

from __future__ import annotations

import asyncio
import contextlib
import os

from millstream.batch.media.media_folder import MediaFolder, MediaPage
from millstream.batch.media.page_process import PAGE_TIMEOUT_S, PageProcess
from millstream.batch.media.pdf_pages import MachineProblem, PageProblem, opened
from millstream.errors import InvalidRequest
from millstream.wire.messages.codec import MAX_MESSAGE_BYTES
from millstream.wire.messages.images import problem_of_image

_MOST_PROCESSES = 8


class MediaReader:
    """Close it at the end. Its processes begin with the first page."""

    def __init__(self, folder: MediaFolder, processes: int | None = None) -> None:
        self._folder = folder
        count = processes or min(_MOST_PROCESSES, max(1, (os.cpu_count() or 1) // 2))
        self._turns = asyncio.Semaphore(count)
        self._idle: list[PageProcess] = []

    async def read(self, page: MediaPage) -> bytes:
        """The image file. Raises InvalidRequest if it is none, or cannot be read; MachineProblem."""
        try:
            data = await self._data(page)
        except PageProblem as error:
            raise InvalidRequest(page.where, page.name, str(error)) from None
        except OSError as error:
            problem = f"cannot be read ({error.strerror}); give an image file"
            raise InvalidRequest(page.where, page.name, problem) from None
        if len(data) > MAX_MESSAGE_BYTES:
            problem = f"takes {len(data):,} bytes; a whole message may have {MAX_MESSAGE_BYTES:,}"
            raise InvalidRequest(
                page.where, page.name, f"{problem}: try --page-format jpeg or less --pdf-dpi"
            )
        if problem_of := problem_of_image(data):
            raise InvalidRequest(page.where, page.name, problem_of)
        return data

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().end()

    async def _data(self, page: MediaPage) -> bytes:
        if page.page is None:
            return await asyncio.to_thread(_whole, page)
        async with self._turns:
            if self._idle:  # its end may be older than the page
                with contextlib.suppress(EOFError, OSError):
                    return await self._rendered(self._idle.pop(), page)
            try:
                return await self._rendered(await PageProcess.start(), page)
            except (EOFError, TimeoutError, ConnectionError):
                problem = f"PDFium died on it, or took longer than {PAGE_TIMEOUT_S:.0f} s; save it again"
                raise PageProblem(problem) from None

    async def _rendered(self, process: PageProcess, page: MediaPage) -> bytes:
        try:
            data = await process.render(page, self._folder)
        except (PageProblem, MachineProblem):
            self._idle.append(process)
            raise
        except BaseException:
            await process.end()
            raise
        self._idle.append(process)
        return data


def _whole(page: MediaPage) -> bytes:
    with opened(page.path, page.seen) as file:
        return file.read(MAX_MESSAGE_BYTES + 1)
