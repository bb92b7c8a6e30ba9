"""The model digest: equal for copies of one checkpoint, and quick for checkpoints of any size. It covers the
configuration, the weights (names, types, shapes and samples of their bytes), the tokenizer and the chat
template; not the precision in which an engine computes, nor its device. Needs no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millstream_worker.engine.runner.checkpoint.checkpoint import Checkpoint
from millstream_worker.engine.runner.checkpoint.source_weights import weight_files

DIGEST_HEX = 32
_HEAD_BYTES = 16 * 2**20  # of a GGUF file, hashed whole: its metadata with vocabulary and template is there
_PIECES, _PIECE_BYTES = 64, 2**16  # hashed of the rest, evenly spread, and the end
_SAMPLES, _SAMPLE_BYTES = 256, 1024  # of a folder's weights by their sizes, beside one of each tensor
_OF_TOKENIZERS = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
_OF_NO_ANSWER = {"transformers_version", "_name_or_path", "torch_dtype", "dtype", "use_cache"}


def digest_of(checkpoint: Checkpoint) -> str:
    """The digest of the checkpoint's source, in hexadecimal. Raises OSError; ValueError for damage."""
    if checkpoint.source.is_file():
        return digest_of_file(checkpoint.source)[:DIGEST_HEX]
    digest = hashlib.sha256()
    for name in ("config.json", "generation_config.json"):
        if (checkpoint.folder / name).is_file():
            config = json.loads((checkpoint.folder / name).read_bytes())
            digest.update(json.dumps(_relevant(config), sort_keys=True).encode())
    for part in _weights(checkpoint.folder):
        digest.update(part)
    for name in _OF_TOKENIZERS:
        file = checkpoint.tokenizer_folder / name
        if file.is_file():
            digest.update(f"\0{name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:DIGEST_HEX]


def digest_of_file(file: Path, form: bytes = b"") -> str:
    """The digest of a GGUF file: of its size, its head and samples of the rest. `form` changes it."""
    size = file.stat().st_size
    digest = hashlib.sha256(form + size.to_bytes(8, "big"))
    starts = [size * piece // _PIECES for piece in range(_PIECES)] + [size - _PIECE_BYTES]
    with file.open("rb") as data:
        digest.update(data.read(_HEAD_BYTES))
        for start in starts:
            data.seek(max(start, _HEAD_BYTES))
            digest.update(data.read(_PIECE_BYTES))
    return digest.hexdigest()


def _relevant(value: Any) -> Any:
    """A configuration without the fields on which no answer depends."""
    if isinstance(value, dict):
        return {name: _relevant(one) for name, one in value.items() if name not in _OF_NO_ANSWER}
    return value


def _weights(folder: Path) -> Iterator[bytes]:
    """Each tensor's name, type and shape, and its samples; in the order of the names, so that the split into
    files makes no difference.
    """
    tensors = sorted(
        (name, str(tensor["dtype"]), str(tensor["shape"]), file, start, end)
        for file in weight_files(folder)
        for name, tensor, (start, end) in _tensors(file)
    )
    whole = sum(end - start for *_, start, end in tensors)
    for name, dtype, shape, file, start, end in tensors:
        yield f"\0{name}\0{dtype}\0{shape}\0".encode()
        yield from _samples(file, start, end, 1 + _SAMPLES * (end - start) // max(1, whole))


def _tensors(file: Path) -> Iterator[tuple[str, dict[str, Any], tuple[int, int]]]:
    """The tensors of a safetensors file by its header, each with its place in the file."""
    with file.open("rb") as data:
        size = int.from_bytes(data.read(8), "little")
        header = json.loads(data.read(size))
    try:
        for name, tensor in header.items():
            if name != "__metadata__":
                start, end = tensor["data_offsets"]
                yield name, tensor, (8 + size + start, 8 + size + end)
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"{file.name} is no whole safetensors file: {error!r}") from error


def _samples(file: Path, start: int, end: int, count: int) -> Iterator[bytes]:
    """`count` samples, evenly spread over a tensor's bytes."""
    with file.open("rb", buffering=0) as data:
        for number in range(count):
            middle = start + (end - start) * (2 * number + 1) // (2 * count)
            data.seek(max(start, middle - _SAMPLE_BYTES // 2))
            yield data.read(min(_SAMPLE_BYTES, end - data.tell()))
