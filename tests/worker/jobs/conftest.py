from __future__ import annotations

import pytest
from support.models.spelling import with_words
from support.models.tokenizers import build
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from millstream_worker.text.model import TextModel


@pytest.fixture(scope="module")
def thinker() -> tuple[TextModel, Tokenizer]:
    tokenizer = with_words(build("byte-level"))
    return TextModel(PreTrainedTokenizerFast(tokenizer_object=tokenizer)), tokenizer
