"""Compiles grammars for the vocabulary of one engine."""

from __future__ import annotations

from llguidance import LLTokenizer

from millstream_worker.engine.grammars.grammar_compiler import GrammarCompiler
from millstream_worker.engine.grammars.grammar_thread import GrammarThread
from millstream_worker.engine.grammars.grammar_trial import GrammarTrial
from millstream_worker.engine.protocol.config import EngineInfo
from millstream_worker.engine.runner.checkpoint.vocabulary import read_vocabulary


def grammars_for(info: EngineInfo) -> GrammarThread:
    """Returns the thread that compiles them."""

    def vocabulary(ends: tuple[int, ...]) -> LLTokenizer:
        return read_vocabulary(info.tokenizer, info.vocab_size, info.eos_ids + ends)

    trial = GrammarTrial()
    compiler = GrammarCompiler(vocabulary, trial.check, trial.problem)
    return GrammarThread(compiler, trial.problem)
