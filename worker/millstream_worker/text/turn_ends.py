"""Finds the tokens that end an assistant's turn in a chat, beside those that configurations name: the
tokenizer's end, and the token that the chat template itself writes behind an answer.
"""

from __future__ import annotations

from typing import Any

import structlog

from millstream.wire.messages.tools import CALL_BEGIN, CALL_END
from millstream_worker.text.chat_template import ChatTemplate
from millstream_worker.text.reasoning import THINK_BEGIN, THINK_END

_log = structlog.get_logger(__name__)
_INSIDE = {THINK_BEGIN, THINK_END, CALL_BEGIN, CALL_END}  # parts of a turn


def turn_ends(tokenizer: Any, template: ChatTemplate, vocab_size: int) -> tuple[int, ...]:
    """Their ids, without those beyond the model's vocabulary, of which a warning tells. Raises
    TemplateTooMuch.
    """
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    ids = {token.content: index for index, token in added.items() if token.content not in _INSIDE}
    found = {tokenizer.eos_token_id: "tokenizer", ids.get(_written_end(template, ids)): "chat template"}
    for token, source in found.items():
        if token is not None and token >= vocab_size:
            _log.warning("end beyond the vocabulary", token=token, source=source, vocab_size=vocab_size)
    return tuple(token for token in found if token is not None and token < vocab_size)


def _written_end(template: ChatTemplate, ids: dict[str, int]) -> str:
    """The added token behind an answer that the user's next turn follows; "" where there is none. Nor is
    there one where an answer's text has a head of such tokens that no other turn has, as gpt-oss's channels:
    its turns have several parts, and what ends a part ends no turn.
    """
    begun, before, behind = template.around_answer()
    if any(token in before and token not in begun for token in ids):
        return ""
    rest = behind.lstrip()
    return max((token for token in ids if token and rest.startswith(token)), key=len, default="")
