"""What an engine says of itself where nothing depends on it; a test replaces what it does depend on."""

from __future__ import annotations

from millstream_worker.engine.protocol.config import EngineInfo

INFO = EngineInfo(
    model="m", architecture="a", dtype="float32", device="cpu", attention="none", tokenizer="",
    vocab_size=1000, context_length=512, eos_ids=(2,), block_size=16, blocks=64, max_rows=4,
    kv_bytes_per_token=1, parameters=1,
)  # fmt: skip
