"""A model's vocabulary as grammars need it."""

from __future__ import annotations

from pathlib import Path

import llguidance.hf
from llguidance import LLTokenizer
from transformers import AutoTokenizer

from millstream_worker.engine.brain.grammars.compiling import InvalidGrammar


def read_vocabulary(folder: str | Path, vocab_size: int, eos_ids: tuple[int, ...]) -> LLTokenizer:
    """The tokenizer in a local folder, of a model with logits for `vocab_size` tokens. Raises
    InvalidGrammar.
    """
    if not eos_ids:
        raise InvalidGrammar("the model names no end-of-sequence token, by which an answer could end")
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        return llguidance.hf.from_tokenizer(tokenizer, n_vocab=vocab_size, eos_token=list(eos_ids))
    except Exception as error:  # tokenizers raises a plain Exception for a damaged file
        raise InvalidGrammar(f"the model's tokenizer cannot be followed by a grammar: {error}") from error
