"""A tiny random checkpoint whose tokens spell any text: what grammars need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from support.models import checkpoints, tokenizers

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def spelling_checkpoint(folder: Path, **overrides: Any) -> Path:
    """Written under `folder`, with three logits more than tokens; returns its own folder."""
    tokenizer = tokenizers.build("byte-level")
    size, end = tokenizer.get_vocab_size(), tokenizer.token_to_id("<end>")
    written = checkpoints.build("llama", folder, vocab_size=size + 3, eos_token_id=end, **overrides)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(written)
    return written
