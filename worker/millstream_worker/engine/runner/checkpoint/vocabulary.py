"""Reads a model's vocabulary as grammars need it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llguidance import LLTokenizer
from transformers import AutoTokenizer

from millstream_worker.engine.grammars.grammar_fault import InvalidGrammar


def read_vocabulary(folder: str | Path, vocab_size: int, eos_ids: tuple[int, ...]) -> LLTokenizer:
    """Returns a local folder's tokenizer, of a model with `vocab_size` logits. Raises InvalidGrammar."""
    if not eos_ids:
        raise InvalidGrammar("the model names no end-of-sequence token, by which an answer could end")
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        form = json.loads(tokenizer.backend_tokenizer.to_str())
        _split_inside_a_text(form)
        _hide_control_tokens(form)
        return LLTokenizer(json.dumps(form), n_vocab=vocab_size, eos_token=list(eos_ids))
    except Exception as error:  # tokenizers raises a plain Exception for a damaged file
        raise InvalidGrammar(f"the model's tokenizer cannot be followed by a grammar: {error}") from error


def _split_inside_a_text(form: dict[str, Any]) -> None:
    """Turns off the space in front of a text: what a grammar forces goes on from other text."""
    form["padding"] = form["truncation"] = None
    for step in _steps(form["pre_tokenizer"]):
        if "add_prefix_space" in step:
            step["add_prefix_space"] = False
        if "prepend_scheme" in step:
            step["prepend_scheme"] = "never"


def _steps(step: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yields a pre-tokenizer and those inside it."""
    if step is not None:
        yield step
        for inner in step.get("pretokenizers", ()):
            yield from _steps(inner)


def _hide_control_tokens(form: dict[str, Any]) -> None:
    """Give the tokens that llguidance takes for no text names that no text has: where a grammar forces
    `<think>` as text it would force the token, and the row never got on. Grammars name such tokens by id.
    """
    names = {
        token["content"]: f"<\U0010fffe{token['id']}>"
        for token in form["added_tokens"]
        if token["special"] or (token["content"].startswith("<") and token["content"].endswith(">"))
    }
    for token in form["added_tokens"]:
        if token["content"] in names:
            token |= {"content": names[token["content"]], "special": True, "normalized": False}
    model = form["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(name, name): index for name, index in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(name, name), score] for name, score in model["vocab"]]
    if merges := model.get("merges"):
        model["merges"] = [pair for pair in merges if names.keys().isdisjoint((*pair, "".join(pair)))]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
