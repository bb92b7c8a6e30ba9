"""Text to token ids and back, by the model's tokenizer."""

from millstream_worker.text.counting import TooLong
from millstream_worker.text.detokenizer import Detokenizer
from millstream_worker.text.model import TextModel, TokenizerUnusable

__all__ = ["Detokenizer", "TextModel", "TokenizerUnusable", "TooLong"]
