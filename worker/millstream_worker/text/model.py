"""A model's tokenizer and chat template: requests to token ids, token ids to text. No weights, no network.

All methods are thread-safe: the tokenizer is never reconfigured after loading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from transformers import AutoTokenizer

from millstream.errors import InvalidRequest
from millstream.wire.messages.messages import ChatMessage, Request
from millstream_worker.text.counting import Counting
from millstream_worker.text.detokenizer import Detokenizer
from millstream_worker.text.token_bytes import TokenBytes

# Errors of a template on messages it was not written for: its own, or Python's.
_TEMPLATE_ERRORS = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class TokenizerUnusable(Exception):
    """The folder has no usable tokenizer; the message says what to do."""


class TextModel:
    """Made by `load`. `vocab_size` bounds the ids that the model accepts."""

    def __init__(self, tokenizer: Any, vocab_size: int | None = None) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise TokenizerUnusable(
                f"{type(tokenizer).__name__} has no tokenizer.json; save the model with its fast tokenizer"
            )
        backend.no_truncation()
        backend.no_padding()
        self._tokenizer = tokenizer
        self._token_bytes = TokenBytes(backend)
        self._counting = Counting(backend)
        self.vocab_size = vocab_size or self._token_bytes.vocab_size

    @classmethod
    def load(cls, folder: str | Path, vocab_size: int | None = None) -> TextModel:
        """The tokenizer in a local folder. `vocab_size`: the model's, if it is known.

        Raises TokenizerUnusable, naming the folder, if there is none.
        """
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except Exception as error:  # tokenizers raises a plain Exception for a damaged file
            raise TokenizerUnusable(f"no usable tokenizer in {folder}: {error}") from error
        return cls(tokenizer, vocab_size)

    @property
    def has_chat_template(self) -> bool:
        return bool(self._tokenizer.chat_template)

    def encode(self, request: Request, most: int | None = None) -> list[int]:
        """The request's input as token ids. Raises InvalidRequest; TooLong if a text certainly has more than
        `most` tokens, before it is encoded in full.

        A prompt gets the tokenizer's usual special tokens; messages go through the chat template, with the
        generation prompt; token ids are used unchanged.
        """
        if request.token_ids is not None:
            return self._checked("token_ids", list(request.token_ids))
        if request.messages is not None:
            text = self._chat_text(request.messages, request.chat_template_kwargs or {})
            return self._checked("messages", self._counting.ids(text, add_special_tokens=False, most=most))
        assert request.prompt is not None, "exactly one input is given"
        ids = self._counting.ids(request.prompt, add_special_tokens=True, most=most)
        return self._checked("prompt", ids)

    def check_bytes(self, data: bytes, most: int, start: int, end: int) -> None:
        """Raises TooLong if the prompt data[start:end] certainly has more than `most` tokens."""
        self._counting.check_bytes(data, most, start, end)

    def detokenizer(self, stop: Sequence[str] = (), min_tokens: int = 0) -> Detokenizer:
        """For one choice, which ends before the first stop string after its first `min_tokens` ids."""
        return Detokenizer(self._token_bytes, stop, min_tokens)

    def token_text(self, token_id: int) -> str:
        """The text of a single token, for logprobs; a partial character is U+FFFD."""
        return self._token_bytes.token_text(token_id)

    def _chat_text(self, messages: Sequence[ChatMessage], kwargs: Mapping[str, Any]) -> str:
        if not self.has_chat_template:
            raise InvalidRequest(
                "messages",
                [message.role for message in messages],
                "this model has no chat template; send a prompt (millstream submit --raw, "
                "/v1/completions), or serve a chat model",
            )
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            text: str = self._tokenizer.apply_chat_template(
                turns, add_generation_prompt=True, tokenize=False, **kwargs
            )
        except _TEMPLATE_ERRORS as error:
            raise InvalidRequest(
                "messages",
                [turn["role"] for turn in turns],
                f"the model's chat template refuses these messages: {error}; change their roles or order, or "
                "the chat_template_kwargs",
            ) from error
        return text

    def _checked(self, field: str, ids: list[int]) -> list[int]:
        if not ids:
            raise InvalidRequest(field, ids, "gives no tokens at all; send at least one word")
        if max(ids) >= self.vocab_size:
            raise InvalidRequest(
                field,
                max(ids),
                f"a token id is beyond the model's vocabulary of {self.vocab_size}; use ids below it",
            )
        return ids
