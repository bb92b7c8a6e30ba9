"""This package has the model's side without weights: text to token ids and back, the chat template, and the
sampling defaults of the checkpoint.
"""

from millstream_worker.text.detokenizer import Detokenizer
from millstream_worker.text.model import TextModel, TokenizerUnusable
from millstream_worker.text.reasoning import ThinkTokens, Thought, ThoughtStart
from millstream_worker.text.token_count import TooLong

__all__ = [
    "Detokenizer",
    "TextModel",
    "ThinkTokens",
    "Thought",
    "ThoughtStart",
    "TokenizerUnusable",
    "TooLong",
]
