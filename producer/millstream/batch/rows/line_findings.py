"""Counts, before the first job of a run, what its lines ask for that nobody may have meant, and estimates
their tokens. It reads a line's fields only as far as that takes, and judges none: the line may be invalid.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from millstream.batch.rows.batch_lines import LINE_FIELDS, unknown_beside_body
from millstream.client.submit.request_cost import BYTES_PER_TOKEN, FRAME_TOKENS, IMAGE_TOKENS
from millstream.errors import InvalidRequest
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.openai.fields.field_check import (
    FIELD_NAMES,
    HINTED_NAMES,
    INNER_NAMES,
    is_ignored_by_rule,
    unread_names,
)
from millstream.openai.fields.value_forms import whole
from millstream.openai.messages.image_parts import image_parts, is_image
from millstream.openai.name_likeness import meant_name
from millstream.openai.prompt_list import MOST_PROMPTS
from millstream.openai.request_body import DEFAULT_QUEUE, max_tokens_of
from millstream.wire.messages.sampling import SamplingParams

MAX_UNKNOWN = 1000  # counted separately: a file may have a new name on every line
_SHOWN = 10  # names in one message
_MOST_TOKENS = 2**53  # of one line: a bound may be any number until a worker refuses it
_KNOWN = FIELD_NAMES | LINE_FIELDS
_ENDPOINTS = {str(endpoint): endpoint for endpoint in ApiEndpoint}
_HINTED = HINTED_NAMES | LINE_FIELDS
MAX_NAME = 200  # characters: more than a queue's name may have


class LineFindings:
    """Mutable. `unread`: names of fields that nothing reads, with the number of their lines. `prompt_tokens`
    are estimated; `output_tokens` is the most that the answers with a bound may have together, `unbounded`
    the number of lines without one.
    """

    def __init__(self) -> None:
        self.lines = 0
        self.unread: Counter[str] = Counter()
        self.unbounded = 0
        self.prompt_tokens = 0
        self.output_tokens = 0
        self._needs: defaultdict[str, array[int]] = defaultdict(lambda: array("q"))  # tokens, by body.model

    def add(self, fields: Mapping[str, Any]) -> None:
        """Count one line."""
        self.lines += 1
        self.note(fields)
        body, endpoint = fields.get("body"), _endpoint(fields)
        if endpoint is None or not isinstance(body, dict):
            return  # it becomes an error row
        most = _number(body, "truncate_prompt_tokens", _MOST_TOKENS)
        prompts = [min(most, tokens) for tokens in _prompt_tokens(body)]
        bound = _bound(endpoint, body)
        self.prompt_tokens += sum(prompts)
        self.output_tokens += (bound or 0) * _number(body, "n", 1) * len(prompts)
        self.unbounded += bound is None
        model = body.get("model")
        named = model if isinstance(model, str) and model else DEFAULT_QUEUE
        self._needs[named].append(max(prompts) + (bound or 1))

    def note(self, fields: Mapping[str, Any]) -> None:
        """Count the names of one line, which may be refused for one of them."""
        note_names(self.unread, unknown_beside_body(fields))
        body, endpoint = fields.get("body"), _endpoint(fields)
        if endpoint is not None and isinstance(body, dict):
            note_names(self.unread, unread_names(endpoint, body))

    def drop(self, sampling: SamplingParams, prompts: int) -> None:
        """A line that was counted is not to be answered after all."""
        if sampling.max_tokens is None:
            self.unbounded -= 1
        else:
            self.output_tokens -= sampling.max_tokens * sampling.n * prompts

    def too_long(self, contexts: Mapping[str, int], queue: str | None = None) -> int:
        """The number of lines whose input and output are estimated to be more than their model holds.
        `contexts`: its tokens, by queue; `queue`: the one of all lines.
        """
        return sum(
            sum(need > contexts[queue or named] for need in needs)
            for named, needs in self._needs.items()
            if (queue or named) in contexts
        )

    def told_unread(self, *, unknown_only: bool = False) -> str:
        """The names in words, each with its number of lines; empty: there are none. `unknown_only`: without
        those that a server of the API has.
        """
        names = [
            one for one in self.unread.most_common() if not (unknown_only and is_ignored_by_rule(one[0]))
        ]
        told = [
            f"{name} in {count:,} line{'s' if count > 1 else ''}{_hint(name)}"
            for name, count in names[:_SHOWN]
        ]
        more = len(names) - len(told)
        return ", ".join([*told, *([f"{more:,} other names"] if more else [])])


def note_names(counts: Counter[str], names: Iterable[str]) -> None:
    """Count the field names of one line, as they can be printed."""
    for name in names:
        shown = name[:100] if name.isprintable() else ascii(name[:100])[1:-1]
        counts[shown if len(counts) < MAX_UNKNOWN or shown in counts else "…"] += 1


def _hint(name: str) -> str:
    prefix, _, last = name.rpartition(".")
    if is_ignored_by_rule(name):
        return ""
    if name in _KNOWN:
        return " (known, but not in that place)"
    meant = meant_name(last, INNER_NAMES.get(prefix, _HINTED))
    return f" (did you mean {meant}?)" if meant and meant != last else ""


def _endpoint(fields: Mapping[str, Any]) -> ApiEndpoint | None:
    url = fields.get("url")
    return _ENDPOINTS.get(url) if isinstance(url, str) else None


def _bound(endpoint: ApiEndpoint, body: Mapping[str, Any]) -> int | None:
    """Most tokens of one answer; 1 where the line is invalid."""
    try:
        bound = whole(max_tokens_of(endpoint, body))
    except InvalidRequest:
        return 1
    if bound is None:
        return None
    return min(_MOST_TOKENS, max(1, bound)) if type(bound) is int else 1


def _number(body: Mapping[str, Any], name: str, default: int) -> int:
    number = whole(body.get(name))
    return min(_MOST_TOKENS, max(1, number)) if type(number) is int else default


def _prompt_tokens(body: Mapping[str, Any]) -> list[int]:
    """The tokens of each prompt. Four bytes of text are about a token with most tokenizers; a chat template
    writes some more around a message and a tool.
    """
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        listed = [one for one in prompt[:MOST_PROMPTS] if isinstance(one, str | list)]
        counts = [_tokens([one]) if isinstance(one, str) else len(one) for one in listed]
        return counts or [len(prompt)]  # token ids
    messages, tools = body.get("messages"), body.get("tools")
    frames = sum(len(parts) for parts in (messages, tools) if isinstance(parts, list))
    texts = [*_texts([prompt, messages]), json.dumps(tools, ensure_ascii=False) if tools else ""]
    images = sum(1 for _ in image_parts(messages))
    return [frames * FRAME_TOKENS + images * IMAGE_TOKENS + _tokens(texts)]


def _tokens(texts: Iterable[str]) -> int:
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) // BYTES_PER_TOKEN


def _texts(value: Any) -> Iterator[str]:
    """All texts of a value, however deep, but for images."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            left.extend(() if is_image(one) else one.values())
        elif isinstance(one, list):
            left.extend(one)


class Models:
    """Mutable; counts the lines of a run by their body.model; "" stands for none."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, fields: Mapping[str, Any]) -> None:
        """Count one line that is to be run. An invalid name becomes an error row and is not counted."""
        body = fields.get("body")
        model = body.get("model") if isinstance(body, dict) else None
        if model is None or isinstance(model, str):
            self.counts[(model or "")[:MAX_NAME]] += 1
