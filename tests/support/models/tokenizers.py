"""Small tokenizers of every family that models use, made here in milliseconds: no downloads."""

from __future__ import annotations

import json
from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordPieceTrainer

KINDS = (
    "byte-level",
    "bpe-byte-fallback",
    "unigram-byte-fallback",
    "metaspace",
    "wordpiece",
    "regex-replace",
    "plain",
)
_CORPUS = ["the quick brown fox jumps over the lazy dog", "and the quick cat sat on the brown mat"] * 9
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ["<unk>", "<begin>", "<end>"]


@cache
def build(kind: str) -> Tokenizer:
    """A trained tokenizer with the special tokens <unk>, <begin>, <end> and the added word <tool call>."""
    tokenizer = _BUILDERS[kind]()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    tokenizer.add_tokens([AddedToken("<tool call>", special=False)])
    return tokenizer


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def _bpe_byte_fallback() -> Tokenizer:
    """As Llama 2 and Mistral: spaces as ▁, unknown characters as bytes."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(
        _CORPUS, BpeTrainer(vocab_size=150, special_tokens=SPECIAL, show_progress=False)
    )
    model = json.loads(trained.to_str())["model"]
    vocab = model["vocab"] | {name: len(model["vocab"]) + place for place, name in enumerate(_BYTES)}
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = _llama_decoder()
    return tokenizer


def _unigram_byte_fallback() -> Tokenizer:
    pieces = json.loads(_trained_unigram().to_str())["model"]["vocab"]
    pieces = [tuple(piece) for piece in pieces] + [(name, -20.0) for name in _BYTES]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = _llama_decoder()
    return tokenizer


def _llama_decoder() -> decoders.Decoder:
    return decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )


def _trained_unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = UnigramTrainer(vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def _metaspace() -> Tokenizer:
    tokenizer = _trained_unigram()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def _wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(
        [*_CORPUS, "it is , . ! ? so"],
        WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL, show_progress=False),
    )
    return tokenizer


def _regex_replace() -> Tokenizer:
    """A decoder with no rule of ours: the pieces are asked from the tokenizer."""
    tokenizer = _trained_unigram()
    tokenizer.decoder = decoders.Sequence([decoders.Replace(Regex("▁+"), " "), decoders.Fuse()])
    return tokenizer


def _plain() -> Tokenizer:
    """No decoder at all: tokens joined by spaces."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(
        _CORPUS, WordPieceTrainer(vocab_size=150, special_tokens=SPECIAL, show_progress=False)
    )
    return tokenizer


_BUILDERS = {
    "byte-level": _byte_level,
    "bpe-byte-fallback": _bpe_byte_fallback,
    "unigram-byte-fallback": _unigram_byte_fallback,
    "metaspace": _metaspace,
    "wordpiece": _wordpiece,
    "regex-replace": _regex_replace,
    "plain": _plain,
}
