"""Tiny random checkpoints of models that read images, one a type: with a tokenizer of bytes, a chat template,
and the type's own image processor, in the files that published ones have.

Weights are drawn wide: with transformers' own the answers would be constant, whatever the image.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel, PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}IMAGE{% else %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CHAT = ("<|im_start|>", "<|im_end|>", "<|pad|>")  # behind the 256 bytes: 256, 257, 258
_TILES = {
    f"row_{row}_col_{column}": f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)
}
_IDEFICS = {
    "image_token": "<image>", "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>", "end_of_utterance_token": "<end_of_utterance>",
    "video_token": "<video>", **_TILES,
}  # fmt: skip
_OPTIONS = ("image_seq_len", "image_seq_length", "patch_size", "spatial_merge_size")  # of processors
_PIXTRAL = {
    "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 2, "head_dim": 16, "image_size": 64, "patch_size": 8, "num_channels": 3,
    "rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0},
}  # fmt: skip
_SIGLIP = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip


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
    model = _spread(AutoModelForImageTextToText.from_config(AutoConfig.for_model(kind, **config)))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    processor.image_processor.save_pretrained(folder)
    options = {name: getattr(processor, name) for name in _OPTIONS if hasattr(processor, name)}
    options["processor_class"] = type(processor).__name__
    (folder / "processor_config.json").write_text(json.dumps(options))
    return VisionCheckpoint(folder, model, processor, tokenizer, _id(tokenizer, processor.image_token))


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


def _spread(model: Any) -> Any:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.add_(drawn / 8)
            elif "embed_tokens" in name:
                parameter.copy_(drawn)
            else:
                fan = parameter.shape[-1] if parameter.ndim == 2 else parameter[0].numel()
                parameter.copy_(drawn * 1.6 / fan**0.5)
    model.tie_weights()
    return model.float().eval()


_Made = tuple[Any, dict[str, Any]]  # a processor, and a configuration


def _text(kind: str, tokenizer: Any, **more: Any) -> dict[str, Any]:
    return {
        "model_type": kind, "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 2048, "bos_token_id": None, "eos_token_id": 257, "pad_token_id": 258,
        **more,
    }  # fmt: skip


def _id(tokenizer: Any, text: str) -> int:
    found: int = tokenizer.convert_tokens_to_ids(text)
    return found


def _without_videos(processor: type) -> type:
    """Returns the class without its video half, which needs torchvision: with None in that place."""
    return type(processor.__name__, (processor,), {"check_argument_for_proper_class": lambda *_: None})


def _idefics(kind: str, tokenizer: Any) -> _Made:
    sizes = {"size": {"longest_edge": 96}, "max_image_size": {"longest_edge": 32}}
    if kind == "idefics3":
        from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
        from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

        processor = Idefics3Processor(Idefics3ImageProcessorPil(**sizes), tokenizer, image_seq_len=4)
    else:
        from transformers.models.smolvlm import processing_smolvlm
        from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

        processing_smolvlm.num2words = processing_smolvlm.num2words or object()  # spells numbers of videos
        whole = _without_videos(processing_smolvlm.SmolVLMProcessor)
        processor = whole(SmolVLMImageProcessorPil(**sizes), tokenizer, None, image_seq_len=4)
    return processor, {
        "image_token_id": _id(tokenizer, "<image>"), "scale_factor": 2, "pad_token_id": 258,
        "tie_word_embeddings": True, "vision_config": _SIGLIP,
        "text_config": _text("llama", tokenizer, tie_word_embeddings=True),
    }  # fmt: skip


def _lighton_ocr(_kind: str, tokenizer: Any) -> _Made:
    from transformers.models.lighton_ocr.processing_lighton_ocr import LightOnOcrProcessor
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    images = PixtralImageProcessorPil(size={"longest_edge": 64}, patch_size={"height": 16, "width": 16})
    return LightOnOcrProcessor(images, tokenizer, patch_size=8, spatial_merge_size=2), {
        "image_token_id": _id(tokenizer, "<|image_pad|>"), "spatial_merge_size": 2,
        "tie_word_embeddings": True, "vision_config": _PIXTRAL,
        "text_config": _text("qwen3", tokenizer, tie_word_embeddings=True),
    }  # fmt: skip


def _mistral3(_kind: str, tokenizer: Any) -> _Made:
    from transformers.models.pixtral import image_processing_pil_pixtral as pil

    # processing_pixtral imports a function from a module that needs torchvision; the PIL module has it, too
    sys.modules.setdefault("transformers.models.pixtral.image_processing_pixtral", pil)
    from transformers.models.pixtral.processing_pixtral import PixtralProcessor

    images = pil.PixtralImageProcessorPil(size={"longest_edge": 64}, patch_size={"height": 8, "width": 8})
    return PixtralProcessor(images, tokenizer, patch_size=8, spatial_merge_size=2), {
        "image_token_index": _id(tokenizer, "[IMG]"), "spatial_merge_size": 2, "tie_word_embeddings": False,
        "vision_config": _PIXTRAL, "vision_feature_layer": -1,
        "text_config": _text("mistral", tokenizer, sliding_window=None),
    }  # fmt: skip


def _internvl(_kind: str, tokenizer: Any) -> _Made:
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
    from transformers.models.internvl.processing_internvl import InternVLProcessor

    images = GotOcr2ImageProcessorPil(
        size={"height": 32, "width": 32}, crop_to_patches=True, min_patches=1, max_patches=4
    )
    return _without_videos(InternVLProcessor)(images, tokenizer, None, image_seq_length=4), {
        "image_token_id": _id(tokenizer, "<IMG_CONTEXT>"), "image_seq_length": 4, "downsample_ratio": 0.5,
        "tie_word_embeddings": False,
        "vision_config": {**_SIGLIP, "image_size": [32, 32], "patch_size": [8, 8]},
        "text_config": _text("qwen2", tokenizer, tie_word_embeddings=False),
    }  # fmt: skip


# By model type: the tokenizer's special tokens, what the template writes for an image, and what makes the
# processor and the configuration.
VISION_TYPES: dict[str, tuple[dict[str, str], str, Callable[[str, Any], _Made]]] = {
    "idefics3": (_IDEFICS, "<image>", _idefics),
    "smolvlm": (_IDEFICS, "<image>", _idefics),
    "lighton_ocr": ({
        "image_token": "<|image_pad|>", "image_break_token": "<|vision_pad|>",
        "image_end_token": "<|vision_end|>",
    }, "<|image_pad|>", _lighton_ocr),
    "mistral3": ({
        "image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]",
    }, "[IMG]", _mistral3),
    "internvl": ({
        "start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }, "<IMG_CONTEXT>", _internvl),
}  # fmt: skip
