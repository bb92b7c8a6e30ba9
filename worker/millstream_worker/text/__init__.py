"""Text in, token ids out, and back: one tokenizer folder as the worker's front uses it."""

from millstream_worker.text.counting import TooLong
from millstream_worker.text.detokenizer import Detokenizer
from millstream_worker.text.model import TextModel, TokenizerUnusable

__all__ = ["Detokenizer", "TextModel", "TokenizerUnusable", "TooLong"]
