"""A tiny random checkpoint whose tokens spell any text: what grammars need."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from support.models import checkpoints, tokenizers

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


# As Qwen3's and other models', that think and that write calls by themselves.
WORDS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
CALLING_TEMPLATE = (  # a line feed behind a block's tag would be trimmed
    "{% for tool in tools or [] %}{{ tool | tojson }}{{ '\n' }}{% endfor %}{% for message in messages %}"
    "{{ message.role }}: {% if message.content %}{{ message.content }}{% endif %}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}{{ '\n' }}{% endfor %}answer: "
    "{% if enable_thinking is defined %}{{ '<think>\n' }}{% if not enable_thinking %}"
    "{{ '\n</think>\n\n' }}{% endif %}{% endif %}"
)


def with_words(tokenizer: Tokenizer, words: Sequence[str] = WORDS) -> Tokenizer:
    """A copy that has the words as tokens: those as <|word|> are special ones, others have a text."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.add_tokens([AddedToken(word, special=word.startswith("<|"), normalized=False) for word in words])
    return copy


def spelling_checkpoint(
    folder: Path,
    *,
    case: str = "llama",
    words: bool = False,
    more_words: Sequence[str] = (),
    template: str = TEMPLATE,
    **overrides: Any,
) -> Path:
    """Written under `folder`, with three logits more than tokens; returns its own folder."""
    tokenizer = tokenizers.build("byte-level")
    tokenizer = with_words(tokenizer, (*WORDS, *more_words)) if words else tokenizer
    size, end = tokenizer.get_vocab_size(), tokenizer.token_to_id("<end>")
    written = checkpoints.build(case, folder, vocab_size=size + 3, eos_token_id=end, **overrides)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    fast.chat_template = template
    fast.save_pretrained(written)
    return written
