"""Models without a tokenizer get the demo model's."""

from __future__ import annotations

from pathlib import Path

from ops.bench.models.tokenizer import with_tokenizer


def test_a_model_without_a_tokenizer_gets_one(tiny: Path, tmp_path: Path) -> None:
    own = tmp_path / "tokenizer"
    own.mkdir()
    (own / "tokenizer.json").write_text("{}")
    folder = with_tokenizer(tiny, tmp_path / "model", lambda: own)
    assert (folder / "tokenizer.json").read_text() == "{}"
    assert (folder / "config.json").read_text() == (tiny / "config.json").read_text()
    assert with_tokenizer(folder, tmp_path / "unused") == folder
