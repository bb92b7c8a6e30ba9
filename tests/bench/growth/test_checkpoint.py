"""A checkpoint with a longer context."""

from __future__ import annotations

import json
from pathlib import Path

from ops.bench.growth.checkpoint import with_context
from support.models.checkpoints import CONTEXT


def test_a_longer_context_for_the_same_weights(tiny: Path, tmp_path: Path) -> None:
    assert with_context(tiny, CONTEXT, tmp_path) == tiny
    longer = with_context(tiny, CONTEXT + 1, tmp_path)
    config = json.loads((longer / "config.json").read_text())
    assert config["max_position_embeddings"] == CONTEXT + 1
    assert json.loads((tiny / "config.json").read_text()) == config | {"max_position_embeddings": CONTEXT}
    assert (longer / "model.safetensors").samefile(tiny / "model.safetensors")
