"""What grammars force is spelled as the model's text has it, whatever tokens its tokenizer has."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.models.spelling import with_words
from support.models.tokenizers import build
from tokenizers import AddedToken, Tokenizer, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from millstream_worker.engine.grammars.grammar_compiler import GrammarCompiler
from millstream_worker.engine.grammars.matcher import Matcher
from millstream_worker.engine.protocol.request import EngineRequest, GrammarSpec
from millstream_worker.engine.runner.checkpoint.vocabulary import read_vocabulary
from millstream_worker.text.token_bytes import TokenBytes

END = 2


def matcher_of(tokenizer: Tokenizer, folder: Path, *texts: str) -> Matcher:
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(str(folder))
    size = tokenizer.get_vocab_size()
    compiler = GrammarCompiler(lambda ends: read_vocabulary(folder, size, (END, *ends)), lambda grammar: 0.0)
    spec = GrammarSpec("choice", json.dumps(texts))
    return compiler.matchers(EngineRequest(1, (1,), 90, grammar=spec))[0]


@pytest.mark.parametrize("kind", ["byte-level", "bpe-byte-fallback", "unigram-byte-fallback"])
@pytest.mark.parametrize("text", ["a <think> b", "<think>", "the <end> of <unk>", "<tool call>"])
def test_the_name_of_a_control_token_is_spelled(kind: str, text: str, tmp_path: Path) -> None:
    tokenizer = with_words(build(kind))
    matcher = matcher_of(tokenizer, tmp_path, text)
    forced = matcher.forced()
    assert matcher.consume(forced)
    assert matcher.complete
    assert TokenBytes(tokenizer).join(forced) == text.encode()
    assert not set(forced).intersection(tokenizer.get_added_tokens_decoder())


def test_a_control_token_name_that_merges_reach_is_spelled(tmp_path: Path) -> None:
    """As Gemma's tags of HTML, which are both."""
    form = json.loads(build("byte-level").to_str())
    size = len(form["model"]["vocab"]) + len(form["added_tokens"])
    form["model"]["vocab"] |= {"<b": size, "<b>": size + 1}
    form["model"]["merges"] += [["<", "b"], ["<b", ">"]]
    tokenizer = Tokenizer.from_str(json.dumps(form))
    tokenizer.add_tokens([AddedToken("<b>", special=False, normalized=False)])
    forced = matcher_of(tokenizer, tmp_path, "a <b> c").forced()
    assert TokenBytes(tokenizer).join(forced) == b"a <b> c"
    assert size + 1 not in forced


def test_a_tokenizer_with_a_prefix_space_puts_none_before_a_part(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(build("byte-level").to_str())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=True)])
    forced = matcher_of(tokenizer, tmp_path, "the quick fox", "the quick cat").forced()
    assert TokenBytes(tokenizer).join(forced) == b"the quick"


@pytest.mark.parametrize("chat", [False, True])
def test_an_answer_may_end_by_each_of_its_ends(chat: bool, tmp_path: Path) -> None:
    tokenizer = build("byte-level")
    own, turn = tokenizer.token_to_id("<end>"), tokenizer.token_to_id("<begin>")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(str(tmp_path))
    size = tokenizer.get_vocab_size()
    compiler = GrammarCompiler(
        lambda more: read_vocabulary(tmp_path, size, (own, *more)), lambda grammar: 0.0
    )
    spec = GrammarSpec("regex", "z+", ends=(turn,) if chat else ())
    matcher = compiler.matchers(EngineRequest(1, (1,), 90, grammar=spec))[0]
    assert matcher.consume([tokenizer.token_to_id("z")])
    bits = np.zeros(-(-size // 32), np.int32)
    matcher.fill(bits, bits.ctypes.data)
    found = np.unpackbits(bits.view(np.uint8), bitorder="little").nonzero()[0]
    assert (own in found, turn in found) == (True, chat)
    assert matcher.consume([turn if chat else own])
    assert matcher.complete


def test_a_row_that_leaves_its_grammar_is_stuck(tmp_path: Path) -> None:
    matcher = matcher_of(build("byte-level"), tmp_path, "the quick fox")
    assert not matcher.consume([build("byte-level").token_to_id("z")])
    assert (matcher.failure, matcher.forced()) == ("grammar_stuck", [])
