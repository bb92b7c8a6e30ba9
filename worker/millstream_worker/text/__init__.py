"""Text to token ids and back, by the model's tokenizer."""

from millstream_worker.text.counting import TooLong
from millstream_worker.text.detokenizer import Detokenizer
from millstream_worker.text.model import TextModel, TokenizerUnusable
from millstream_worker.text.thoughts import ThinkTokens, Thought, ThoughtStart

__all__ = [
    "Detokenizer",
    "TextModel",
    "ThinkTokens",
    "Thought",
    "ThoughtStart",
    "TokenizerUnusable",
    "TooLong",
]
