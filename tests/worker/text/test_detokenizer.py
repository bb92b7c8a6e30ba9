"""The detokenizer against the tokenizer's own decode, over every family of decoders."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.models.tokenizers import KINDS, SPECIAL, build
from tokenizers import Tokenizer

from millstream_worker.text.detokenizer import Detokenizer
from millstream_worker.text.token_bytes import TokenBytes

TEXTS = st.text(
    st.one_of(
        st.sampled_from("the quick brown fox\n\t .,!?"),
        st.sampled_from("déjà vu Łódź 日本語テスト 漢字 🙂👩‍👩‍👧🇸🇪 ज़ क़ e\u0301 ﷽"),
        st.characters(codec="utf-8"),
    ),
    max_size=60,
)
KIND = st.sampled_from(KINDS)


def cut(items: Sequence[int], rng: random.Random) -> list[Sequence[int]]:
    chunks = []
    while items:
        size = rng.randint(1, 5)
        chunks.append(items[:size])
        items = items[size:]
    return chunks


def run(detokenizer: Detokenizer, chunks: Sequence[Sequence[int]]) -> str:
    return "".join(detokenizer.feed(chunk) for chunk in chunks) + detokenizer.flush()


def whole(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=True))


@given(kind=KIND, text=TEXTS, rng=st.randoms(use_true_random=False))
def test_any_text_in_any_pieces_equals_the_full_decode(kind: str, text: str, rng: random.Random) -> None:
    tokenizer = build(kind)
    ids = tokenizer.encode(text).ids
    assert run(Detokenizer(TokenBytes(tokenizer)), cut(ids, rng)) == whole(tokenizer, ids)


@given(kind=KIND, rng=st.randoms(use_true_random=False))
def test_random_ids_equal_the_full_decode(kind: str, rng: random.Random) -> None:
    tokenizer = build(kind)
    pieces = TokenBytes(tokenizer)
    usable = [i for i in range(pieces.vocab_size) if kind not in FALLBACK or not is_lone_byte(pieces.of(i))]
    ids = rng.choices(usable, k=rng.randint(0, 60))
    assert run(Detokenizer(pieces), cut(ids, rng)) == whole(tokenizer, ids)
    anything = rng.choices(range(pieces.vocab_size + 9), k=20)
    assert run(Detokenizer(pieces), cut(anything, rng)) == run(Detokenizer(pieces), [anything])


FALLBACK = ("bpe-byte-fallback", "unigram-byte-fallback")


def is_lone_byte(piece: bytes) -> bool:
    """Of bytes that are no UTF-8 the tokenizer loses the whole run: see the next test."""
    return len(piece) == 1 and piece[0] >= 0x80


@pytest.mark.parametrize("kind", FALLBACK)
def test_a_broken_byte_spoils_no_neighbour(kind: str) -> None:
    tokenizer = build(kind)
    ids = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in (*"é".encode(), 0xFF, *"日".encode(), 0xE2)]
    assert run(Detokenizer(TokenBytes(tokenizer)), [ids[:3], ids[3:]]) == "é\ufffd日\ufffd"


@example(kind="byte-level", text="the fox", stop=["the ", "h"], rng=random.Random(0))
@given(kind=KIND, text=TEXTS, stop=st.lists(st.text("the\n .é日", min_size=1, max_size=4), max_size=3),
       rng=st.randoms(use_true_random=False))  # fmt: skip
def test_stop_strings_cut_the_text_where_the_first_is_complete(
    kind: str, text: str, stop: list[str], rng: random.Random
) -> None:
    tokenizer = build(kind)
    ids = tokenizer.encode(text).ids
    full = whole(tokenizer, ids)
    ends = [(full.find(s) + len(s), full.find(s)) for s in stop if s in full]
    detokenizer = Detokenizer(TokenBytes(tokenizer), stop)
    out = run(detokenizer, cut(ids, rng))
    assert detokenizer.stopped == bool(ends)
    assert out == (full[: min(ends)[1]] if ends else full)
    kept = detokenizer.kept_tokens
    assert run(Detokenizer(TokenBytes(tokenizer)), [ids[:kept]]).startswith(out)
    if ends and kept:
        assert len(Detokenizer(TokenBytes(tokenizer)).feed(ids[: kept - 1])) < max(len(out), 1)


@given(kind=KIND, text=TEXTS, stop=st.lists(st.text("the\n .é日", min_size=1, max_size=4), max_size=2),
       rng=st.randoms(use_true_random=False))  # fmt: skip
def test_resume_goes_on_after_the_emitted_characters(
    kind: str, text: str, stop: list[str], rng: random.Random
) -> None:
    tokenizer = build(kind)
    ids = tokenizer.encode(text).ids
    logged = rng.randint(0, len(ids))
    before = Detokenizer(TokenBytes(tokenizer), stop)
    emitted = "".join(before.feed(chunk) for chunk in cut(ids[:logged], rng))
    lost = rng.randint(0, len(emitted))  # the log may end before what was last released
    after = Detokenizer(TokenBytes(tokenizer), stop)
    text_after = after.resume(ids[:logged], lost) + run(after, cut(ids[logged:], rng))
    assert emitted[:lost] + text_after == run(Detokenizer(TokenBytes(tokenizer), stop), [ids])
    assert after.stopped or after.kept_tokens == len(ids)


def test_text_is_held_back_only_while_a_stop_string_may_match() -> None:
    tokenizer = build("byte-level")
    detokenizer = Detokenizer(TokenBytes(tokenizer), ["STOP"])
    letters = [tokenizer.token_to_id(letter) for letter in "xSTSTOPy"]
    seen = [detokenizer.feed([letter]) for letter in letters]
    assert seen == ["x", "", "", "ST", "", "", "", ""]
    assert detokenizer.stopped
    assert detokenizer.kept_tokens == 3  # "x", "S", "T": what came before the stop string
    assert detokenizer.flush() == ""
    unfinished = Detokenizer(TokenBytes(tokenizer), ["STOP"])
    assert (unfinished.feed(letters[:3]), unfinished.flush(), unfinished.kept_tokens) == ("x", "ST", 3)


def test_half_a_character_waits_for_its_end_or_the_flush() -> None:
    tokenizer = build("byte-level")
    detokenizer = Detokenizer(TokenBytes(tokenizer))
    ids = tokenizer.encode("🙂").ids
    assert len(ids) == 4
    assert [detokenizer.feed([i]) for i in ids] == ["", "", "", "🙂"]
    assert detokenizer.feed(ids[:2]) == ""
    assert detokenizer.flush() == "\ufffd"


@pytest.mark.parametrize("kind", KINDS)
def test_special_and_out_of_range_tokens_have_no_text(kind: str) -> None:
    tokenizer = build(kind)
    pieces = TokenBytes(tokenizer)
    end = tokenizer.token_to_id("<end>")
    word = tokenizer.encode("the").ids
    detokenizer = Detokenizer(pieces)
    assert run(detokenizer, [[end], [*word, end, pieces.vocab_size + 7], [end]]) == whole(tokenizer, word)
    assert detokenizer.kept_tokens == len(word) + 4
    assert pieces.shown(end) == ("<end>", [])
    assert pieces.shown(pieces.vocab_size + 7) == ("", None)


@given(text=TEXTS, rng=st.randoms(use_true_random=False), min_tokens=st.integers(0, 30))
def test_no_stop_string_is_looked_for_in_the_first_tokens(
    text: str, rng: random.Random, min_tokens: int
) -> None:
    """The end is where it would be if the stop strings were looked for in the rest alone."""
    tokenizer = build("byte-level")
    pieces = TokenBytes(tokenizer)
    ids = tokenizer.encode(text).ids
    stop = ("e", "o", "本", " b")
    free = pieces.join(ids[:min_tokens])
    if free.decode("utf-8", errors="ignore").encode() != free:
        return  # the boundary cuts a character: its rest belongs to the later text
    got = run(Detokenizer(pieces, stop, min_tokens), cut(ids, rng))
    rest = run(Detokenizer(pieces, stop), [ids[min_tokens:]])
    assert got == free.decode() + rest


@given(kind=KIND, text=TEXTS, stop=st.lists(st.text("the\n .é日", min_size=1, max_size=4), max_size=3),
       rng=st.randoms(use_true_random=False), min_tokens=st.integers(0, 4))  # fmt: skip
def test_a_text_may_end_behind_its_stop_string(
    kind: str, text: str, stop: list[str], rng: random.Random, min_tokens: int
) -> None:
    """It is what it is without, with the string; the ids end with the token that completes it."""
    pieces, ids = TokenBytes(build(kind)), build(kind).encode(text).ids
    without, behind = (Detokenizer(pieces, stop, min_tokens, with_stop=one) for one in (False, True))
    shorter, longer = run(without, cut(ids, rng)), run(behind, cut(ids, rng))
    assert behind.stopped == without.stopped
    assert longer in [shorter + one for one in stop] if behind.stopped else longer == shorter
    kept = behind.kept_tokens
    assert run(Detokenizer(pieces), [ids[:kept]]).startswith(longer)
    if behind.stopped:
        assert len(Detokenizer(pieces).feed(ids[: kept - 1])) < len(longer)


@pytest.mark.parametrize("kind", KINDS)
@given(rng=st.randoms(use_true_random=False))
def test_named_tokens_are_text_as_in_the_full_decode(kind: str, rng: random.Random) -> None:
    """Wherever they stand, at the start of the text, too."""
    tokenizer = build(kind)
    pieces = TokenBytes(tokenizer).with_special()
    special = [tokenizer.token_to_id(name) for name in SPECIAL]
    usable = [i for i in range(pieces.vocab_size) if kind not in FALLBACK or not is_lone_byte(pieces.of(i))]
    ids = rng.choices([*usable, *special * 50], k=rng.randint(0, 20))
    assert run(Detokenizer(pieces), cut(ids, rng)) == tokenizer.decode(ids, skip_special_tokens=False)
    assert {pieces.shown(one)[1] for one in special} == {None}


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
def test_bytes_of_tokens_joined_are_those_of_the_text(kind: str, text: str) -> None:
    """But for spaces that some tokenizers drop at the start of a text."""
    tokenizer = build(kind)
    pieces, ids = TokenBytes(tokenizer), tokenizer.encode(text).ids
    told = [pieces.shown(one) for one in [*ids, tokenizer.token_to_id("<end>")]]
    joined = b"".join(name.encode() if own is None else bytes(own) for name, own in told)
    assert joined.decode().lstrip(" ") == whole(tokenizer, ids).lstrip(" ")
