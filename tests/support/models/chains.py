"""Tiny checkpoints whose output is known: after a token comes always the same next one. Embeddings are unit
vectors, attention and MLP are zero, and the head maps each token to its successor; behind any other token
comes the end of a text. The letter T, as the prompt's last, begins the chain.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

LETTERS = bytes_to_unicode()
END, TURN = "<|endoftext|>", "<|im_end|>"
SPECIALS = [END, "<|im_start|>", TURN]
# `pick`, among the template's arguments, is the prompt's end.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}{{ '\n' }}{{ m.content }}<|im_end|>{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{{ '\n' }}{{ pick or '' }}{% endif %}"
)


def _spelled(text: str) -> str:
    return "".join(LETTERS[byte] for byte in text.encode())


def _names(chain: list[str]) -> list[str]:
    """The vocabulary: letters, the chain's words, one that a merge makes, special tokens."""
    words = [_spelled(piece) for piece in chain if piece not in SPECIALS]
    return [*LETTERS.values(), *words, "zz", *SPECIALS]


def _matrices(names: list[str], chain: list[str], width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Embeddings and head, [tokens, width] each."""
    last, after = names.index("T"), {}
    for piece in chain:
        after[last] = last = names.index(piece if piece in SPECIALS else _spelled(piece))
    embeddings, head = np.zeros((2, len(names), width), np.float32)
    for token in range(len(names)):
        embeddings[token, token] = head[after.get(token, names.index(END)), token] = 1
    return embeddings, head


@torch.no_grad()
def _model(names: list[str], chain: list[str]) -> PreTrainedModel:
    width = -(-len(names) // 128) * 128  # heads of 32 and more; whole blocks of quantised weights
    config = AutoConfig.for_model(
        "llama", vocab_size=len(names), hidden_size=width, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=4, head_dim=width // 4, max_position_embeddings=1024,
        eos_token_id=names.index(END), bos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, weight in model.named_parameters():
        weight.fill_(1.0 if "norm" in name else 0.0)
    embeddings, head = _matrices(names, chain, width)
    model.get_input_embeddings().weight.copy_(torch.from_numpy(embeddings))
    model.get_output_embeddings().weight.copy_(torch.from_numpy(head))
    return model


def chain_checkpoint(folder: Path, chain: list[str], *, tokenizer_end: str = TURN, **generation: Any) -> Path:
    """Its configurations name END alone, its tokenizer another; `generation`: more of the former."""
    names = _names(chain)
    model = _model(names, chain)
    for name, value in generation.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    ordinary = {name: index for index, name in enumerate(names[: -len(SPECIALS)])}
    tokenizer = Tokenizer(models.BPE(ordinary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIALS])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=tokenizer_end)
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return folder
