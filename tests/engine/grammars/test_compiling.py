"""The compiler of grammars, apart from an engine."""

from __future__ import annotations

import pytest
from llguidance import LLTokenizer

from millstream_worker.engine.brain.grammars.compiling import GrammarCompiler, InvalidGrammar
from millstream_worker.engine.protocol.request import EngineRequest, GrammarSpec


def test_a_vocabulary_that_cannot_be_followed_is_looked_at_once() -> None:
    """It takes seconds, in which the other requests with grammars wait."""
    looks = []

    def tokenizer() -> LLTokenizer:
        looks.append(1)
        raise InvalidGrammar("it has no end")

    compiler = GrammarCompiler(tokenizer, lambda grammar: None)
    for pattern in ("a", "a", "b"):
        with pytest.raises(InvalidGrammar, match="it has no end"):
            compiler.matchers(EngineRequest(1, (1,), 5, grammar=GrammarSpec("regex", pattern)))
    assert len(looks) == 1
