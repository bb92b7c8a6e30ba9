"""Reads the files of lines when these are sent: image files in threads, pages of PDF files in processes."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from millstream.batch.media.media_folder import MediaFolder, MediaPage
from millstream.batch.media.pdf_pages import PAGE_TIMEOUT_S, PageProblem, opened, prepare, rendered
from millstream.errors import InvalidRequest, MissingExtra
from millstream.wire.messages.codec import MAX_MESSAGE_BYTES
from millstream.wire.messages.images import problem_of_image

_MOST_PROCESSES = 8


class MediaReader:
    """Close it at the end. Its processes begin with the first page."""

    def __init__(self, folder: MediaFolder, processes: int | None = None) -> None:
        self._folder = folder
        self._processes = processes or min(_MOST_PROCESSES, max(1, (os.cpu_count() or 1) // 2))
        self._pool: ProcessPoolExecutor | None = None
        self._alone = asyncio.Lock()  # of a page on which a process may have died

    async def read(self, page: MediaPage) -> bytes:
        """The image file. Raises InvalidRequest if it is none, or cannot be read."""
        try:
            data = await self._data(page)
        except (PageProblem, MissingExtra) as error:
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

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    async def _data(self, page: MediaPage) -> bytes:
        if page.page is None:
            return await asyncio.to_thread(_whole, page)
        pool = self._pool = self._pool or _new_pool(self._processes)
        try:
            return await self._rendered(pool, page, page.page)
        except BrokenProcessPool:  # perhaps by another page
            if self._pool is pool:
                self._pool = None
        async with self._alone:
            alone = _new_pool(1)
            try:
                return await self._rendered(alone, page, page.page)
            except BrokenProcessPool:
                problem = f"PDFium died on it, or took longer than {PAGE_TIMEOUT_S:.0f} s; save it again"
                raise PageProblem(problem) from None
            finally:
                alone.shutdown(wait=False)

    async def _rendered(self, pool: ProcessPoolExecutor, page: MediaPage, number: int) -> bytes:
        asked = pool.submit(
            rendered, page.path, page.seen, number, self._folder.dpi, self._folder.page_format.value
        )
        return await asyncio.wrap_future(asked)


def _whole(page: MediaPage) -> bytes:
    with opened(page.path, page.seen) as file:
        return file.read(MAX_MESSAGE_BYTES + 1)


def _new_pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, get_context("spawn"), prepare)
