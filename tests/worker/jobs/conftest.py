from __future__ import annotations

import pytest
from support.models.call_templates import HARMONY, HARMONY_TOKENS
from support.models.spelling import with_words
from support.models.tokenizers import build
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from millstream_worker.text.model import TextModel


@pytest.fixture(scope="module")
def thinker() -> tuple[TextModel, Tokenizer]:
    tokenizer = with_words(build("byte-level"))
    return TextModel(PreTrainedTokenizerFast(tokenizer_object=tokenizer)), tokenizer


@pytest.fixture(scope="module")
def channel_speaker() -> tuple[TextModel, Tokenizer]:
    """Writes its answers as gpt-oss does."""
    tokenizer = Tokenizer.from_str(build("byte-level").to_str())
    tokenizer.add_special_tokens(list(HARMONY_TOKENS))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = HARMONY
    return TextModel(fast), tokenizer
