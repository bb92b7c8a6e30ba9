"""A checkpoint of granite-docling-258M's shape with random weights: an idefics3 model whose tower encodes
tiles of 512 x 512 pixels to 64 features each, with the files that its image processor needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ops.bench.machine import precision
from ops.bench.models.checkpoints import cache, save

NAME = "granite-docling-258m"
_TOKENS = {
    "image_token": "<image>", "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>", "end_of_utterance_token": "<end_of_utterance>",
}  # fmt: skip
_TILES = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
_PLACEHOLDER = 256  # the first behind the bytes
_CHAT = """{% for message in messages %}{{ message.role }}: {% if message.content is string %}
{{ message.content }}{% else %}
{% for part in message.content %}{{ "<image>" if part.type == "image" else part.text }}{% endfor %}
{% endif %}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""
_VISION = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 512, "patch_size": 16,
}  # fmt: skip
_TEXT = {
    "model_type": "llama", "vocab_size": 100_352, "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
    "max_position_embeddings": 8192, "tie_word_embeddings": True, "rope_theta": 100_000.0,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip


def vision_checkpoint(device: str = "cpu") -> Path:
    """A folder with the model, its tokenizer of bytes and its image processor, in a precision that the device
    computes."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    dtype = precision(device)
    folder = cache() / f"{NAME}-{dtype}"
    if not folder.exists():
        config = AutoConfig.for_model(
            "idefics3", image_token_id=_PLACEHOLDER, scale_factor=4, tie_word_embeddings=True,
            vision_config=_VISION, text_config=_TEXT,
        )  # fmt: skip
        torch.manual_seed(0)
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
        save(model.to(getattr(torch, dtype)), folder, also=_processor_files(cache() / f"{NAME}-files"))
    return folder


def _processor_files(folder: Path) -> list[Path]:
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    images = Idefics3ImageProcessorPil(size={"longest_edge": 2048}, max_image_size={"longest_edge": 512})
    images.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    (folder / "processor_config.json").write_text(
        json.dumps({"processor_class": "Idefics3Processor", "image_seq_len": 64})
    )
    return sorted(folder.iterdir())


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={char: place for place, char in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([*_TOKENS.values(), *_TILES])
    fast = PreTrainedTokenizerFast(tokenizer_object=made, extra_special_tokens=dict(_TOKENS))
    fast.chat_template = _CHAT
    return fast
