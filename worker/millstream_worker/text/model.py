"""A model's tokenizer and chat template: requests to token ids, token ids to text. No weights, no network.

All methods are thread-safe: the tokenizer is never reconfigured after loading.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import structlog
from transformers import AutoTokenizer

from millstream.errors import InvalidRequest
from millstream.wire.messages.job_messages import Request
from millstream.wire.messages.tools import CALL_BEGIN, CALL_END
from millstream_worker.engine.grammars.calls.call_form import HERMES, CallForm
from millstream_worker.text.channels import CHANNEL_NAMES, Channels, ChannelTokens
from millstream_worker.text.chat_template import ChatTemplate
from millstream_worker.text.detokenizer import Detokenizer
from millstream_worker.text.reasoning import THINK_BEGIN, THINK_END, ThinkTokens, Thought, ThoughtStart
from millstream_worker.text.template.render_budget import TemplateTooMuch
from millstream_worker.text.token_bytes import TokenBytes
from millstream_worker.text.token_count import TokenCounter

_log = structlog.get_logger(__name__)
_INSIDE = {THINK_BEGIN, THINK_END, CALL_BEGIN, CALL_END}  # parts of a turn


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
        self.template = ChatTemplate(tokenizer)
        self._tokenizer = tokenizer
        self._token_bytes = TokenBytes(backend)
        self._counting = TokenCounter(backend)
        self.vocab_size = vocab_size or self._token_bytes.vocab_size
        self._named_bytes = self._token_bytes.with_special()
        self.think = self._thought_tokens()
        self.turn_ends: tuple[int, ...] = ()  # tokens that end a chat's answer, beside the model's own

    @classmethod
    def load(cls, folder: str | Path, vocab_size: int | None = None) -> TextModel:
        """The tokenizer in a local folder. `vocab_size`: the model's, if it is known.

        Raises TokenizerUnusable, naming the folder, if there is none, or if its chat template never ends.
        """
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
            if not tokenizer.chat_template:
                tokenizer.chat_template = _template_of_processor(Path(folder))
        except Exception as error:  # tokenizers raises a plain Exception for a damaged file
            raise TokenizerUnusable(f"no usable tokenizer in {folder}: {error}") from error
        model = cls(tokenizer, vocab_size)
        try:
            model.template.check()
            model.turn_ends = turn_ends(tokenizer, model.template, model.vocab_size)
        except TemplateTooMuch as error:
            raise TokenizerUnusable(
                f"the chat template in {folder} {error}, for a conversation of one word; correct "
                "chat_template.jinja or tokenizer_config.json, or fetch them anew"
            ) from error
        return model

    @cached_property
    def own_call_form(self) -> CallForm | str:
        """The form in which the model calls tools; a text names one that is not built."""
        known = self.template.known.call_form
        in_channels = isinstance(known, CallForm) and bool(known.answer)
        if in_channels and not isinstance(self.think, ChannelTokens):
            return f"harmony, and the tokenizer lacks one of {', '.join(CHANNEL_NAMES)}"
        return known

    @cached_property
    def call_form(self) -> CallForm:
        """The form in which answers call tools: Hermes', too, where the model's own is not built."""
        return HERMES if isinstance(self.own_call_form, str) else self.own_call_form

    @cached_property
    def call_tokens(self) -> dict[str, int]:
        """The added tokens in calls: ids by text."""
        added = self._tokenizer.backend_tokenizer.get_added_tokens_decoder().items()
        ids = {token.content: index for index, token in added if index < self.vocab_size}
        literals = self.call_form.literals
        return {
            text: ids[text] for text in ids if not text.isspace() and any(text in part for part in literals)
        }

    @cached_property
    def _call_bytes(self) -> TokenBytes:
        return self._token_bytes.with_names(*self.call_tokens.values())

    def encode(self, request: Request, most: int | None = None) -> list[int]:
        """The request's input as token ids. Raises InvalidRequest; TooLong if a text certainly has more than
        `most` tokens, before it is encoded in full.

        A prompt gets the tokenizer's usual special tokens; messages go through the chat template; token ids
        are used unchanged. With `truncate_prompt_tokens` only so many of the last ones are returned.
        """
        last = request.sampling.truncate_prompt_tokens
        if last is not None and most is not None and last > most:
            last = None  # what it cuts is refused
        if request.token_ids is not None:
            return self._checked("token_ids", list(request.token_ids[-(last or 0) :]))
        field, text = "prompt", request.prompt
        if request.messages is not None:
            field, text = "messages", self.rendered(request)
        assert text is not None, "exactly one input is given"
        return self._checked(
            field, self._counting.ids(text, add_special_tokens=field == "prompt", most=most, last=last)
        )

    def rendered(self, request: Request) -> str:
        """The text of a conversation, up to the answer. Raises InvalidRequest."""
        return self.template.render(request, thinks=self.think is not None)

    def ids_of(self, rendered: str) -> list[int]:
        """The token ids of a rendered conversation."""
        return self._counting.ids(rendered, add_special_tokens=False)

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of these ids, special ones shown."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def predicted(self, text: str, most: int) -> list[int]:
        """A guess of an answer as token ids, at most so many. Raises InvalidRequest."""
        ids = self._counting.ids(text, add_special_tokens=False)[:most]
        return self._checked("prediction", ids) if ids else ids

    def bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The tokens of these texts, as they are and behind a space. Raises InvalidRequest."""
        written: dict[tuple[int, ...], None] = {}
        for word in words:
            text = word.lstrip() or word
            for one in (text, f" {text}"):
                written[tuple(self._counting.ids(one, add_special_tokens=False))] = None
        if () in written:
            raise InvalidRequest("sampling.bad_words", list(words), "has a text without tokens; leave it out")
        return tuple(written)

    def check_bytes(self, data: bytes, most: int, start: int, end: int) -> None:
        """Raises TooLong if the prompt data[start:end] certainly has more than `most` tokens."""
        self._counting.check_bytes(data, most, start, end)

    def detokenizer(
        self,
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        *,
        calls: bool = False,
        special: bool = False,
        with_stop: bool = False,
        begun: bool = False,
    ) -> Detokenizer:
        """For one choice, which ends before the first stop string after its first `min_tokens` ids, or
        `with_stop` behind it. `calls`: the tokens around a call of a tool are text, also where they are
        special ones; `special`: so are all special ones. `begun`: it goes on with a text.
        """
        plain = self._call_bytes if calls else self._token_bytes
        shown = self._named_bytes if special else plain
        return Detokenizer(shown, stop, min_tokens, with_stop=with_stop, begun=begun)

    def thought_start(self, prompt: Sequence[int]) -> ThoughtStart:
        """How an answer to a rendered prompt begins; NONE where the model has no tokens for thoughts."""
        return ThoughtStart.NONE if self.think is None else self.think.start(prompt, self._token_bytes)

    def thought(
        self, start: ThoughtStart, *, special: bool = False, calls: bool = False
    ) -> Thought | Channels | None:
        """For one choice. `special`: special tokens are text; `calls`: it may call tools."""
        if self.think is None or start is ThoughtStart.NONE:
            return None
        if isinstance(self.think, ChannelTokens):
            return Channels(self.think, start, self._token_bytes, called=calls)
        return Thought(self.think, start, self._named_bytes if special else self._token_bytes)

    def _thought_tokens(self) -> ThinkTokens | ChannelTokens | None:
        for names, kind in ((CHANNEL_NAMES, ChannelTokens), ((THINK_BEGIN, THINK_END), ThinkTokens)):
            ids = [index for name in names if (index := self._single(name)) is not None]
            if len(ids) == len(names):
                return kind(*ids)
        return None

    def _single(self, name: str) -> int | None:
        """The id of the added token of this name, if the model can write it."""
        added = self._tokenizer.backend_tokenizer.get_added_tokens_decoder()
        ids = (index for index, token in added.items() if token.content == name)
        return next((index for index in ids if index < self.vocab_size), None)

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


def _template_of_processor(folder: Path) -> str | None:
    """Returns the chat template of a file that earlier processors of images wrote, and no tokenizer reads.
    Raises ValueError for a file without one."""
    file = folder / "chat_template.json"
    if not file.is_file():
        return None
    form = json.loads(file.read_bytes())
    if not isinstance(form, dict) or not isinstance(template := form.get("chat_template"), str):
        raise ValueError(f"{file.name} has no text under chat_template; fetch it anew")
    return template


def turn_ends(tokenizer: Any, template: ChatTemplate, vocab_size: int) -> tuple[int, ...]:
    """Their ids, but for those beyond the vocabulary, of which a warning tells. Raises TemplateTooMuch."""
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
    begun, before, behind = template.known.around_answer()
    if any(token in before and token not in begun for token in ids):
        return ""
    rest = behind.lstrip()
    return max((token for token in ids if token and rest.startswith(token)), key=len, default="")
