"""The served model: its tokenizer, and what the engine reported about itself."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from millstream_worker.engine.protocol.config import EngineInfo
from millstream_worker.text import TextModel


@dataclass(frozen=True, slots=True)
class ServedModel:
    """`digest`: of the checkpoint's files; empty where answers are not kept for equal requests."""

    text: TextModel
    info: EngineInfo
    digest: bytes = b""

    @property
    def facts(self) -> dict[str, str]:
        """Fields of a Result that say what computed it; unknown ones are empty."""
        return {
            "model": self.info.model,
            "weights": self.info.weights,
            "kv_format": self.info.kv_format,
        }


class ModelSlot:
    """Filled each time an engine is ready, before it gets any job. After an engine's death its model stays
    until the next one is published. `digested`: as answers are kept for equal requests.
    """

    def __init__(self, *, digested: bool = False) -> None:
        self.current: ServedModel | None = None
        self.digested = digested

    async def load(self, info: EngineInfo) -> ServedModel:
        """Read the files that an engine names. Raises TokenizerUnusable."""
        text = await asyncio.to_thread(TextModel.load, info.tokenizer, info.vocab_size)
        folders = (info.folder, info.tokenizer)
        return ServedModel(text, info, await asyncio.to_thread(_digest, *folders) if self.digested else b"")

    def publish(self, served: ServedModel) -> None:
        self.current = served

    def get(self) -> ServedModel:
        """For work that is done only after an engine was ready."""
        assert self.current is not None, "entries are taken once an engine is ready"
        return self.current


@cache
def _digest(*folders: str) -> bytes:
    """SHA-256 of all files in these folders: about a second for each GiB."""
    whole = hashlib.sha256()
    paths = {path for folder in folders if folder for path in Path(folder).iterdir() if path.is_file()}
    for path in sorted(paths, key=lambda path: path.name):
        with path.open("rb") as file:
            whole.update(f"{path.name}\0".encode("utf-8", "surrogateescape"))
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.digest()
