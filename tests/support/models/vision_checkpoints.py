"""Tiny random checkpoints of models that read images, one a type: with a tokenizer of bytes, a chat template,
and the type's own image processor, in the files that published ones have.

Weights are drawn wide: with transformers' own the answers would be constant, whatever the image.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel, PreTrainedTokenizerFast

from support.models.vision_types import VISION_TYPES

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}IMAGE{% else %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CHAT = ("<|im_start|>", "<|im_end|>", "<|pad|>")  # behind the 256 bytes: 256, 257, 258
_OPTIONS = ("image_seq_len", "image_seq_length", "patch_size", "spatial_merge_size")  # of processors


@dataclass(frozen=True, eq=False)
class VisionCheckpoint:
    """A whole model, and the parts that its processor puts together. `placeholder`: the token of features."""

    folder: Path
    model: PreTrainedModel
    processor: Any
    tokenizer: PreTrainedTokenizerFast
    placeholder: int

    def inputs(self, conversation: list[dict[str, Any]], images: list[Image.Image]) -> Any:
        """Returns what transformers gives the model for a rendered conversation and its images."""
        text = self.tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
        return self.processor(text=[text], images=[images] if images else None, return_tensors="pt")

    def generate(self, given: Any, tokens: int) -> list[int]:
        """Returns the greedy tokens that transformers' own generation continues with."""
        self.model.generation_config.eos_token_id = None
        if hasattr(self.model.model, "rope_deltas"):
            self.model.model.rope_deltas = None  # of the request before
        with torch.inference_mode():
            answer = self.model.generate(**given, max_new_tokens=tokens, do_sample=False)
        ids: list[int] = answer[0, given["input_ids"].shape[1] :].tolist()
        return ids


def build(kind: str, folder: Path) -> VisionCheckpoint:
    """Saves a checkpoint of a model type of VISION_TYPES in the folder."""
    torch.manual_seed(0)
    named, shown, make = VISION_TYPES[kind]
    tokenizer = _tokenizer(named, shown)
    processor, config = make(kind, tokenizer)
    whole = AutoModelForImageTextToText.from_config(AutoConfig.for_model(kind, **config))
    model = _spread(whole, scaled=kind == "granite_docling")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    processor.image_processor.save_pretrained(folder)
    options = {name: getattr(processor, name) for name in _OPTIONS if hasattr(processor, name)}
    options["processor_class"] = type(processor).__name__
    (folder / "processor_config.json").write_text(json.dumps(options))
    return VisionCheckpoint(
        folder, model, processor, tokenizer, tokenizer.convert_tokens_to_ids(processor.image_token)
    )


def picture(seed: int, width: int, height: int) -> Image.Image:
    """Returns random blocks of colour: no two are alike."""
    random = np.random.default_rng(seed)
    small = random.integers(0, 256, (max(1, height // 6), max(1, width // 6), 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.NEAREST)


def _tokenizer(named: dict[str, str], shown: str) -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={char: at for at, char in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([*_CHAT, *dict.fromkeys(named.values())])
    attributes = {name: text for name, text in named.items() if name.endswith("_token")}
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        extra_special_tokens=attributes,
        chat_template=TEMPLATE.replace("IMAGE", shown),
    )


def _spread(model: Any, *, scaled: bool) -> Any:
    """Embeddings that a model multiplies are small, or tied ones would copy their input; its images count
    for more then."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.add_(drawn / 8)
            elif "embed_tokens" in name:
                parameter.copy_(drawn * (0.05 if scaled else 1.0))
            else:
                fan = parameter.shape[-1] if parameter.ndim == 2 else parameter[0].numel()
                more = 8.0 if scaled and ("connector" in name or "projector" in name) else 1.0
                parameter.copy_(drawn * 1.6 * more / fan**0.5)
    model.tie_weights()
    return model.float().eval()
