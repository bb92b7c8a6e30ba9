"""Defines the engine's input: one request of one or more choices, as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """Sampling parameters of a row, validated before. 0 (top_k, min_p) and 1 (top_p) are off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, bias)
    min_tokens: int = 0
    # EOS (unless ignored) and stop_token_ids: end a row, masked below min_tokens
    end_ids: tuple[int, ...] = ()
    top_logprobs: int | None = None  # None: no logprobs; k: the sampled token's and the k most likely
    seed: int = 0


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """The grammar that every output of a request must follow, as its `response_format` or its tools say."""

    type: str  # json_schema | json_object | regex | choice | grammar | tools
    text: str = ""
    compact: bool = False  # JSON without whitespace
    whitespace_pattern: str | None = None  # a regular expression of what may stand between JSON's tokens
    # the tokens around a thought before it; only an end: the prompt has begun it; none: there is no thought
    thought_begin: int | None = None
    thought_end: int | None = None
    # harmony's <|start|>, <|channel|>, <|message|>: thoughts are messages
    channels: tuple[int, int, int] | None = None
    ends: tuple[int, ...] = ()  # tokens that may end a whole answer, beside the model's own
    answer: GrammarSpec | None = None  # of tools: the form of an answer without calls, where it has one

    @property
    def field(self) -> str:
        """Returns the field of the request that asks for the grammar."""
        return "tools" if self.type == "tools" else "response_format"


@dataclass(frozen=True, slots=True)
class LimitSpec:
    """The tokens that every output of a request may have, beside its grammar. None and empty: any."""

    allowed: bytes | None = None  # a bit for each token of the vocabulary: far smaller than their ids
    bad_words: tuple[tuple[int, ...], ...] = ()  # the last token of each never follows those before it
    # The tokens after which a thought is ended, and its own ones: without a begin, the prompt has begun it.
    thought_budget: int | None = None
    thought_begin: int | None = None
    thought_end: int | None = None


def token_bits(tokens: Iterable[int], vocab_size: int) -> bytes:
    """Returns the bits of these tokens, all of them below `vocab_size`; the lowest bit of a byte is first."""
    bits = bytearray(-(-vocab_size // 8))
    for token in tokens:
        bits[token >> 3] |= 1 << (token & 7)
    return bytes(bits)


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """The place of an image in a prompt. The engine holds the image already, see `frames.HoldImage`."""

    digest: bytes  # of the image file
    runs: tuple[tuple[int, int], ...]  # first place and number of tokens of each run of features, rising


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request from the front; choice i has the handle `handle` + i.

    `outputs` holds per choice the tokens sampled in earlier attempts (they are prefilled again, and count as
    output); a choice in `done` had already ended and is not run.
    """

    handle: int
    prompt: tuple[int, ...]
    max_tokens: int  # output tokens per choice, all attempts together
    sampling: SamplingSpec = SamplingSpec()
    choices: int = 1
    outputs: tuple[tuple[int, ...], ...] = ()
    done: tuple[int, ...] = ()
    priority: int = 1  # 0 interactive, 1 batch: lower goes first
    deadline_ms: int | None = None
    tenant: str = ""
    salt: str = ""  # rows share cached blocks only within one salt
    alone: bool = False  # run in a batch of its own (suspect of having killed an engine)
    prediction: tuple[int, ...] = ()  # what its outputs may be, for the most part
    images: tuple[ImageSpan, ...] = ()  # in the order of their places
    grammar: GrammarSpec | None = None
    limits: LimitSpec | None = None
