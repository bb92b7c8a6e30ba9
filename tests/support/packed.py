"""Data as the tools gzip and zstd pack them."""

from __future__ import annotations

import gzip
from collections.abc import Callable

from millstream.batch.files.compressed import FileCompression, _zstd

ZSTD = _zstd()


def zstd(data: bytes) -> bytes:
    return ZSTD.compress(data, options={ZSTD.CompressionParameter.checksum_flag: 1})


PACKERS: dict[FileCompression, Callable[[bytes], bytes]] = {
    FileCompression.GZIP: gzip.compress,
    FileCompression.ZSTD: zstd,
}
