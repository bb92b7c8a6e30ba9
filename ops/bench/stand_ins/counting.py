"""Workers with the tests' counting engine: next token = last one + 1, and token i is the word `w<i>`."""

from __future__ import annotations

import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

ENGINE = Path("tests/support/workers/fake_engine.py")
WORDS = 1000


def engine_flags(folder: Path, *, rows: int, step_s: float, context: int = 65_536) -> list[str]:
    """Flags of a worker. Its tokenizer is written to `folder`."""
    tokenizer = word_tokenizer(folder)
    model = f"counting:tokenizer={tokenizer},rows={rows},blocks=16384,context={context},step_s={step_s}"
    command = f"{sys.executable} {ENGINE.absolute()}"
    return ["--model", model, "--max-rows", str(rows), "--engine-command", command]


def word_tokenizer(folder: Path) -> Path:
    """The tokenizer's own folder in `folder`."""
    own = folder / "tokenizer"
    if not own.exists():
        tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        own.mkdir(parents=True)
        tokenizer.save(str(own / "tokenizer.json"))
        (own / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return own
