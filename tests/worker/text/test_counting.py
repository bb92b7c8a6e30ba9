"""Long texts in slices: the ids are those of the whole text, whatever the tokenizer, and no more of it is
encoded than is needed to refuse it."""

from __future__ import annotations

import json
import unicodedata
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.models.tokenizers import KINDS, build
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers, processors

from millstream_worker.text.token_count import TokenCounter, TooLong

SLICE = 48  # bytes
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
VARIANTS = ("llama-3", "nfc", "prefix-space", "bert", "first", "framed", "spaces")
PARTS = (
    "the quick brown", "fox ", "  ", "\n", "\r\n\n", " \n \t", ", ", "don't", "...", "▁", "a_b", "12345 678",
    "<begin>", " <end> ", "<tool call>", "the <tool call> fox", "<tool", "call>", "Yes No",
    "déjà vu", "e\u0301", " \u0301", "日本語、テスト。", "👩\u200d👩\u200d👧", "ज़ क़ ", "\u212a", "x🏻",
    "\uac00", "\u1100\u1161\u11a8",  # Hangul, composed and not
)  # fmt: skip
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(PARTS),
        st.text(st.sampled_from("the quick brown\n\t .,!?12345"), max_size=40),
        st.text(max_size=8),
    ),
    max_size=60,
).map("".join)


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    if kind in KINDS:
        return build(kind)
    base = {"bert": "wordpiece", "first": "metaspace", "framed": "wordpiece"}.get(kind, "byte-level")
    tokenizer = Tokenizer.from_str(build(base).to_str())
    byte_level = pre_tokenizers.ByteLevel(
        add_prefix_space=kind == "prefix-space", use_regex=kind != "llama-3"
    )
    match kind:
        case "llama-3":
            split = pre_tokenizers.Split(Regex(LLAMA_3), behavior="isolated")
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
            tokenizer.post_processor = framing(tokenizer, "<begin> $A")
        case "nfc":
            tokenizer.normalizer = normalizers.NFC()
        case "prefix-space":
            tokenizer.pre_tokenizer = byte_level
            tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
        case "bert":
            tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        case "first":
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        case "framed":
            tokenizer.post_processor = framing(tokenizer, "<begin> $A <end>")
        case "spaces":
            tokenizer.add_tokens([AddedToken("  "), AddedToken("Yes No"), AddedToken("fox <")])
    return tokenizer


def framing(tokenizer: Tokenizer, single: str) -> processors.PostProcessor:
    names = [(name, tokenizer.token_to_id(name)) for name in ("<begin>", "<end>")]
    return processors.TemplateProcessing(single=single, special_tokens=names)


@cache
def counter_of(kind: str) -> TokenCounter:
    return TokenCounter(tokenizer_of(kind), SLICE)


@example("bpe-byte-fallback", "the fox <tool call> quick brown the fox jumps over the <end> lazy <end>", True)
@example("spaces", "the Yes No  fox Yes No  the Yes No fox Yes No the Yes No fox Yes No", True)
@example("nfc", "the fox \u0301 over the lazy dog e\u0301 e\u0301, a \u0301" * 9, False)
@given(kind=st.sampled_from((*KINDS, *VARIANTS)), text=TEXTS, special=st.booleans())
def test_ids_of_slices_are_those_of_the_whole_text(kind: str, text: str, special: bool) -> None:
    whole = tokenizer_of(kind).encode(text, add_special_tokens=special).ids
    assert counter_of(kind).ids(text, add_special_tokens=special) == whole


@given(kind=st.sampled_from((*KINDS, *VARIANTS)), text=TEXTS, most=st.integers(1, 200))
def test_only_a_text_of_more_tokens_is_refused(kind: str, text: str, most: int) -> None:
    whole = tokenizer_of(kind).encode(text).ids
    try:
        assert counter_of(kind).ids(text, add_special_tokens=True, most=most) == whole
    except TooLong:
        assert len(whole) > most


@pytest.mark.parametrize("kind", [*KINDS, *VARIANTS])
def test_ordinary_text_is_cut_and_encoded_no_further_than_needed(kind: str) -> None:
    """Only where the best path leads through the whole text, nowhere."""
    text = "the quick brown fox jumps over the lazy dog, and the quick cat. " * 64
    counting = TokenCounter(tokenizer_of(kind), SLICE, most_uncut_bytes=4 * SLICE)
    if kind == "unigram-byte-fallback":
        with pytest.raises(TooLong, match="put spaces") as uncut:
            counting.ids(text, add_special_tokens=False)
        assert uncut.value.size == f"{len(text)} bytes of text"
    else:
        told = counting.ids(text, add_special_tokens=False)
        assert told == tokenizer_of(kind).encode(text, add_special_tokens=False).ids
        with pytest.raises(TooLong, match=r"^more than 4[0-9]{2} tokens"):
            counting.ids(text, add_special_tokens=False, most=400)


CERTAIN = {
    "byte-level", "bpe-byte-fallback", "unigram-byte-fallback", "llama-3", "nfc", "prefix-space", "spaces",
}  # fmt: skip


@pytest.mark.parametrize("kind", [*KINDS, *VARIANTS])
def test_bytes_are_enough_to_refuse_where_no_token_has_more(kind: str) -> None:
    counting = counter_of(kind)
    certain = kind in CERTAIN
    assert (counting.longest_token is not None) == certain
    if counting.longest_token is not None:
        counting.check_bytes(b"x" * 8 * counting.longest_token, 8)
        with pytest.raises(TooLong, match=r"^[0-9]+ bytes of text"):
            counting.ids("x" * (8 * counting.longest_token + 1), add_special_tokens=False, most=8)


def test_bytes_that_become_no_token_do_not_count() -> None:
    """Some vocabularies lack control characters: a text of them alone has no tokens, however long it is."""
    spec = json.loads(build("byte-level").to_str())
    del spec["model"]["vocab"]["\u0116"]  # byte 0x16
    counting = TokenCounter(Tokenizer.from_str(json.dumps(spec)))
    assert counting.ids("\x16" * 1000, add_special_tokens=False, most=8) == []
    with pytest.raises(TooLong, match="1000 bytes of text"):
        counting.ids("x" * 900 + "\x16" * 100, add_special_tokens=False, most=8)


def test_no_normal_form_is_shorter_than_a_quarter() -> None:
    """Of a character; and of all that a composed one can come from."""
    codes = [*range(0x3400), *range(0xF900, 0xFB50), *range(0x2F800, 0x2FA20)]  # others have no normal form
    letters = [chr(code) for code in codes]
    longest: dict[str, int] = {}  # bytes of what becomes this character
    for letter in letters:
        normal = unicodedata.normalize("NFC", letter)
        if len(normal) == 1:
            longest[normal] = max(longest.get(normal, 0), len(letter.encode()))
    for letter in letters:
        parts = unicodedata.normalize("NFD", letter)
        size = sum(longest.get(part, len(part.encode())) for part in parts)
        assert max(size, longest.get(letter, 0)) <= 4 * len(unicodedata.normalize("NFC", letter).encode())


def test_one_that_looks_far_is_never_cut() -> None:
    tokenizer = Tokenizer.from_str(build("byte-level").to_str())
    split = pre_tokenizers.Split(Regex(r"(?<=the )\w+"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, tokenizer.pre_tokenizer])
    with pytest.raises(TooLong, match="more than 96 bytes in a row"):
        TokenCounter(tokenizer, SLICE, most_uncut_bytes=2 * SLICE).ids(
            "the fox " * 40, add_special_tokens=False
        )
