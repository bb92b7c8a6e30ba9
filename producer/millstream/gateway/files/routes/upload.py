"""Receives one upload: the fields of its form, and the file's bytes from the socket to the store."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from starlette.requests import Request

from millstream.batch.files.compressed import (
    HEAD_BYTES,
    DamagedData,
    Decompressor,
    FileCompression,
    compression_in,
)
from millstream.errors import InvalidRequest, MissingExtra
from millstream.gateway.files.routes.multipart_body import PartHead, multipart_parts
from millstream.gateway.files.store.file_record import UPLOAD_PURPOSES, FileRecord, new_file_id, object_path
from millstream.gateway.files.store.object_store import ObjectStore
from millstream.gateway.http.body_encoding import check_plain
from millstream.openai.api_error import ApiError

PATH = "/v1/files"
LEAST_LASTS_S, MOST_LASTS_S = 3600, 30 * 86_400
BATCH = "batch"  # the purpose
BATCH_LASTS_S = 30 * 86_400  # of a batch's input, unless it says otherwise
OVERHEAD_BYTES = 64 * 1024  # of a body beside the file
_MOST_FIELD_BYTES = 1024
_MOST_NAME = 255
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_FIELDS = ("purpose", _ANCHOR, _SECONDS)


@dataclass(slots=True, eq=False)
class Upload:
    """`fields` may come before and behind the file: they are checked as soon as they are there. `content`:
    SHA-256 of the file, as it came, where it is wanted. A compressed file of the purpose `batch` is stored
    plain: while it comes, or, if its purpose comes behind it, out of the store when that is known.
    """

    store: ObjectStore
    tenant: str
    most_bytes: int
    content: hashlib._Hash | None = None
    id: str = field(default_factory=new_file_id)
    filename: str | None = None  # None: no file has come yet
    size: int = 0  # bytes in the store
    packing: FileCompression | None = None  # of the file as it came
    is_plain: bool = False  # it was decompressed
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return object_path(self.tenant, self.id)

    @property
    def digest(self) -> str:
        """SHA-256 of all that was received: the same for a repeated upload."""
        assert self.content is not None
        parts = [PATH, self.filename, sorted(self.fields.items()), self.content.hexdigest()]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    async def receive(self, request: Request) -> FileRecord:
        """Writes the file's object; returns the file's record. Raises InvalidRequest, ApiError 400, 413, 415,
        StoreUnavailable, ClientDisconnected: all but some failures of the store leave no object.
        """
        check_plain(request)
        self._check_length(request)
        stream = aiter(multipart_parts(request))
        try:
            head = await anext(stream, None)
            while head is not None:
                assert isinstance(head, PartHead)
                head = await (self._keep(head, stream) if head.name == "file" else self._read(head, stream))
            self._check_whole()
            if self.is_compressed_batch and not self.is_plain:
                await self._write_plain(self.store.read(self.path))
            return self._record()
        except BaseException:
            if self.filename is not None:
                await self.store.delete(self.path)
            raise

    @property
    def is_compressed_batch(self) -> bool:
        return self.packing is not None and self.fields.get("purpose") == BATCH

    def _check_length(self, request: Request) -> None:
        length = request.headers.get("content-length", "")
        if length.isascii() and length.isdecimal() and int(length[:20]) > self.most_bytes + OVERHEAD_BYTES:
            raise self._too_large()

    def _too_large(self) -> ApiError:
        message = f"file: it may have {self.most_bytes} bytes, also when it is decompressed; split it"
        return ApiError(413, message, "file_too_large", "file")

    async def _keep(self, head: PartHead, stream: AsyncIterator[PartHead | bytes]) -> PartHead | None:
        """Write the file; returns the head of the next part."""
        if self.filename is not None:
            raise ApiError(400, "file: send one file only", "invalid_value", "file")
        name = head.filename or "upload"
        if len(name) > _MOST_NAME:
            raise InvalidRequest("file", name, f"its name may have {_MOST_NAME} characters")
        self.filename = name
        following: list[PartHead] = []
        begin, chunks = await _with_begin(self._bounded(self._received(stream, following)))
        self.packing = compression_in(begin)
        if self.is_compressed_batch:
            await self._write_plain(chunks)
        else:
            self.size = await self.store.write(self.path, chunks)
        return following[0] if following else None

    async def _received(
        self, stream: AsyncIterator[PartHead | bytes], following: list[PartHead]
    ) -> AsyncIterator[bytes]:
        async for one in stream:
            if isinstance(one, PartHead):
                following.append(one)
                return
            if self.content is not None:
                self.content.update(one)
            yield one

    async def _bounded(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        size = 0
        async for one in chunks:
            size += len(one)
            if size > self.most_bytes:
                raise self._too_large()
            yield one

    async def _write_plain(self, chunks: AsyncIterator[bytes]) -> None:
        assert self.packing is not None
        self.size = await self.store.write(self.path, self._bounded(self._decompressed(self.packing, chunks)))
        self.is_plain = True

    async def _decompressed(
        self, packing: FileCompression, chunks: AsyncIterator[bytes]
    ) -> AsyncIterator[bytes]:
        """Raises InvalidRequest."""
        try:
            decompressor = Decompressor(packing)
            async for chunk in chunks:
                for piece in decompressor.feed(chunk):
                    await asyncio.sleep(0)
                    if piece:
                        yield piece
            decompressor.end()
        except MissingExtra:
            problem = "this gateway is installed without zstd; send it compressed with gzip, or as it is"
            raise InvalidRequest("file", self.filename, problem) from None
        except DamagedData as error:
            problem = f"its {packing.name.lower()} data cannot be decompressed: {error}; "
            problem += "compress it again, or send it as it is"
            raise InvalidRequest("file", self.filename, problem) from None

    async def _read(self, head: PartHead, stream: AsyncIterator[PartHead | bytes]) -> PartHead | None:
        value = bytearray()
        following = None
        async for one in stream:
            if isinstance(one, PartHead):
                following = one
                break
            value += one
            if len(value) > _MOST_FIELD_BYTES:
                raise InvalidRequest(_dotted(head.name), bytes(value), "it is too long")
        if head.name in _FIELDS:
            text = value.decode("utf-8", "replace")
            if self.fields.setdefault(head.name, text) != text:
                raise InvalidRequest(_dotted(head.name), text, "it came before with another value")
            self._check()
        return following

    def _check(self) -> None:
        """Checks the fields that have come so far. Raises InvalidRequest."""
        if (purpose := self.fields.get("purpose")) is not None and purpose not in UPLOAD_PURPOSES:
            raise InvalidRequest("purpose", purpose, f"must be one of {', '.join(UPLOAD_PURPOSES)}")
        if (anchor := self.fields.get(_ANCHOR)) is not None and anchor != "created_at":
            raise InvalidRequest(_dotted(_ANCHOR), anchor, "must be created_at")
        if (seconds := self.fields.get(_SECONDS)) is not None:
            is_number = seconds.isascii() and seconds.isdecimal() and len(seconds) < 10
            if not is_number or not LEAST_LASTS_S <= int(seconds) <= MOST_LASTS_S:
                problem = f"must be a whole number from {LEAST_LASTS_S} to {MOST_LASTS_S}"
                raise InvalidRequest(_dotted(_SECONDS), seconds, problem)

    def _check_whole(self) -> None:
        """Raises ApiError 400 if a field or the file is missing."""
        if "purpose" not in self.fields:
            raise _missing("purpose", f"give one of {', '.join(UPLOAD_PURPOSES)}")
        if self.filename is None:
            raise _missing("file", "send it as a part of the form with this name")
        for name, other in ((_ANCHOR, _SECONDS), (_SECONDS, _ANCHOR)):
            if other in self.fields and name not in self.fields:
                raise _missing(_dotted(name), f"give it with {_dotted(other)}")

    def _record(self) -> FileRecord:
        purpose, seconds = self.fields["purpose"], self.fields.get(_SECONDS)
        lasts_s = int(seconds) if seconds is not None else BATCH_LASTS_S if purpose == BATCH else None
        name = self.filename or ""
        if self.is_plain and self.packing is not None:
            name = name.removesuffix(self.packing) or name
        return FileRecord.new(
            self.tenant, id=self.id, filename=name, purpose=purpose, bytes=self.size, lasts_s=lasts_s
        )


async def _with_begin(chunks: AsyncIterator[bytes]) -> tuple[bytes, AsyncIterator[bytes]]:
    """Returns the first bytes, as many as tell a compression, and all of them with what follows."""
    begin = b""
    while len(begin) < HEAD_BYTES and (chunk := await anext(chunks, None)) is not None:
        begin += chunk

    async def all_of_it() -> AsyncIterator[bytes]:
        if begin:
            yield begin
        async for chunk in chunks:
            yield chunk

    return begin, all_of_it()


def _missing(name: str, remedy: str) -> ApiError:
    return ApiError(400, f"{name}: missing; {remedy}", "missing_field", name)


def _dotted(name: str) -> str:
    return name.replace("[", ".").replace("]", "")
