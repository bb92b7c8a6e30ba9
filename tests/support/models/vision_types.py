"""Tiny models that read images, one a type: what their tokenizers know, what their templates write for an
image, and what makes their processors and configurations."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_TILES = {
    f"row_{row}_col_{column}": f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)
}
_IDEFICS = {
    "image_token": "<image>", "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>", "end_of_utterance_token": "<end_of_utterance>",
    "video_token": "<video>", **_TILES,
}  # fmt: skip
_PIXTRAL = {
    "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 2, "head_dim": 16, "image_size": 64, "patch_size": 8, "num_channels": 3,
    "rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0},
}  # fmt: skip
_SIGLIP = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
_QWEN = {
    "image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "start": "<|vision_start|>",
    "end": "<|vision_end|>",
}  # fmt: skip
_PADDLE = {
    "image_token": "<|IMAGE_PLACEHOLDER|>", "start": "<|IMAGE_START|>", "end": "<|IMAGE_END|>",
    "video": "<|video_pad|>",
}  # fmt: skip
_GLM = {
    "image_token": "<|image|>", "video_token": "<|video|>", "start": "<|begin_of_image|>",
    "end": "<|end_of_image|>", "begin_video": "<|begin_of_video|>", "end_video": "<|end_of_video|>",
}  # fmt: skip
_HUNYUAN = {
    "image_token": "<img_tok>", "image_start_token": "<img_start>", "image_end_token": "<img_end>",
    "image_newline_token": "<img_nl>",
}  # fmt: skip
_MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}

Made = tuple[Any, dict[str, Any]]  # a processor, and a configuration


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


def _idefics(kind: str, tokenizer: Any) -> Made:
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


def _lighton_ocr(_kind: str, tokenizer: Any) -> Made:
    from transformers.models.lighton_ocr.processing_lighton_ocr import LightOnOcrProcessor
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    images = PixtralImageProcessorPil(size={"longest_edge": 64}, patch_size={"height": 16, "width": 16})
    return LightOnOcrProcessor(images, tokenizer, patch_size=8, spatial_merge_size=2), {
        "image_token_id": _id(tokenizer, "<|image_pad|>"), "spatial_merge_size": 2,
        "tie_word_embeddings": True, "vision_config": _PIXTRAL,
        "text_config": _text("qwen3", tokenizer, tie_word_embeddings=True),
    }  # fmt: skip


def _mistral3(_kind: str, tokenizer: Any) -> Made:
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


def _internvl(_kind: str, tokenizer: Any) -> Made:
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


def _qwen_images(patch_size: int = 8) -> Any:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    sizes = {"shortest_edge": 16 * 16, "longest_edge": 72 * 72}
    return Qwen2VLImageProcessorPil(patch_size=patch_size, merge_size=2, temporal_patch_size=2, size=sizes)


def _qwen_ids(tokenizer: Any) -> dict[str, Any]:
    return {
        "image_token_id": _id(tokenizer, "<|image_pad|>"), "video_token_id": _id(tokenizer, "<|video_pad|>"),
        "vision_start_token_id": _id(tokenizer, "<|vision_start|>"),
        "vision_end_token_id": _id(tokenizer, "<|vision_end|>"), "tie_word_embeddings": False,
    }  # fmt: skip


def _qwen2_vl(_kind: str, tokenizer: Any) -> Made:
    from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor

    return _without_videos(Qwen2VLProcessor)(_qwen_images(), tokenizer, None), {
        **_qwen_ids(tokenizer),
        "vision_config": {
            "depth": 2, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2, "num_heads": 2, "patch_size": 8,
        },
        "text_config": _text("qwen2_vl_text", tokenizer, rope_parameters=_MROPE),
    }  # fmt: skip


def _qwen2_5_vl(_kind: str, tokenizer: Any) -> Made:
    from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor

    return _without_videos(Qwen2_5_VLProcessor)(_qwen_images(), tokenizer, None), {
        **_qwen_ids(tokenizer),
        "vision_config": {
            "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 8,
            "out_hidden_size": 64, "window_size": 32, "fullatt_block_indexes": [1],
        },
        "text_config": _text("qwen2_5_vl_text", tokenizer, rope_parameters=_MROPE),
    }  # fmt: skip


def _qwen3_vl(_kind: str, tokenizer: Any) -> Made:
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

    rope = {**_MROPE, "mrope_interleaved": True}
    return _without_videos(Qwen3VLProcessor)(_qwen_images(), tokenizer, None), {
        **_qwen_ids(tokenizer),
        "vision_config": {
            "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 8,
            "out_hidden_size": 64, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1],
        },
        "text_config": _text("qwen3_vl_text", tokenizer, rope_parameters=rope),
    }  # fmt: skip


def _paddleocr_vl(_kind: str, tokenizer: Any) -> Made:
    from transformers.models.paddleocr_vl import image_processing_pil_paddleocr_vl as pil
    from transformers.models.paddleocr_vl.processing_paddleocr_vl import PaddleOCRVLProcessor

    sizes = {"shortest_edge": 16 * 16, "longest_edge": 72 * 72}
    images = pil.PaddleOCRVLImageProcessorPil(patch_size=8, merge_size=2, temporal_patch_size=1, size=sizes)
    return PaddleOCRVLProcessor(images, tokenizer), {
        "image_token_id": _id(tokenizer, _PADDLE["image_token"]),
        "video_token_id": _id(tokenizer, _PADDLE["video"]),
        "vision_start_token_id": _id(tokenizer, _PADDLE["start"]),
        "vision_end_token_id": _id(tokenizer, _PADDLE["end"]), "tie_word_embeddings": True,
        "vision_config": {**_SIGLIP, "image_size": 64, "spatial_merge_size": 2},
        "text_config": _text("paddleocr_vl_text", tokenizer, rope_parameters=_MROPE),
    }  # fmt: skip


def _glm_ocr(_kind: str, tokenizer: Any) -> Made:
    from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil
    from transformers.models.glm46v.processing_glm46v import Glm46VProcessor

    sizes = {"shortest_edge": 16 * 16, "longest_edge": 72 * 72 * 2}
    images = Glm46VImageProcessorPil(patch_size=8, merge_size=2, temporal_patch_size=2, size=sizes)
    return _without_videos(Glm46VProcessor)(images, tokenizer, None), {
        "image_token_id": _id(tokenizer, _GLM["image_token"]),
        "video_token_id": _id(tokenizer, _GLM["video_token"]),
        "image_start_token_id": _id(tokenizer, _GLM["start"]),
        "image_end_token_id": _id(tokenizer, _GLM["end"]),
        "video_start_token_id": _id(tokenizer, _GLM["begin_video"]),
        "video_end_token_id": _id(tokenizer, _GLM["end_video"]), "tie_word_embeddings": False,
        "vision_config": {
            "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 8,
            "out_hidden_size": 64, "image_size": 64,
        },
        "text_config": _text("glm_ocr_text", tokenizer, rope_parameters=_MROPE),
    }  # fmt: skip


def _hunyuan_vl(_kind: str, tokenizer: Any) -> Made:
    from transformers.models.hunyuan_vl import image_processing_pil_hunyuan_vl as pil
    from transformers.models.hunyuan_vl.processing_hunyuan_vl import HunYuanVLProcessor

    sizes = {"shortest_edge": 16 * 16, "longest_edge": 72 * 72}
    images = pil.HunYuanVLImageProcessorPil(patch_size=8, merge_size=2, size=sizes)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2, 2]}
    return HunYuanVLProcessor(images, tokenizer), {
        "image_token_id": _id(tokenizer, _HUNYUAN["image_token"]),
        "im_start_id": _id(tokenizer, _HUNYUAN["image_start_token"]),
        "im_end_id": _id(tokenizer, _HUNYUAN["image_end_token"]),
        "im_newline_id": _id(tokenizer, _HUNYUAN["image_newline_token"]), "tie_word_embeddings": True,
        "vision_config": {
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "patch_size": 8, "out_hidden_size": 64, "text_hidden_size": 64, "max_image_size": 128,
            "min_image_size": 16, "img_max_token_num": 64,
        },
        "text_config": _text("hunyuan_vl_text", tokenizer, rope_parameters=rope),
    }  # fmt: skip


def _granite_docling(_kind: str, tokenizer: Any) -> Made:
    from transformers.models.granite_docling import image_processing_pil_granite_docling as pil
    from transformers.models.granite_docling.processing_granite_docling import GraniteDoclingProcessor

    images = pil.GraniteDoclingImageProcessorPil(
        size={"height": 32, "width": 32}, crop_to_patches=True, min_patches=1, max_patches=6
    )
    return GraniteDoclingProcessor(images, tokenizer, image_seq_len=4), {
        "image_token_id": _id(tokenizer, "<image>"), "pad_token_id": 258, "tie_word_embeddings": True,
        "vision_config": {
            **_SIGLIP, "num_hidden_layers": 3, "scale_factor": 2, "out_hidden_size": 64,
            "deepstack_visual_indexes": [0, 1], "use_fine_route": False,
        },
        "text_config": _text(
            "granite_docling_text", tokenizer, tie_word_embeddings=True, embedding_multiplier=2.0,
            logits_scaling=2.0, residual_multiplier=0.9, attention_multiplier=0.25,
        ),
    }  # fmt: skip


# By model type: the tokenizer's special tokens, what the template writes for an image, and what makes the
# processor and the configuration.
VISION_TYPES: dict[str, tuple[dict[str, str], str, Callable[[str, Any], Made]]] = {
    "idefics3": (_IDEFICS, "<image>", _idefics),
    "smolvlm": (_IDEFICS, "<image>", _idefics),
    "lighton_ocr": ({
        "image_token": "<|image_pad|>", "image_break_token": "<|vision_pad|>",
        "image_end_token": "<|vision_end|>",
    }, "<|image_pad|>", _lighton_ocr),
    "mistral3": ({
        "image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]",
    }, "[IMG]", _mistral3),
    "qwen2_vl": (_QWEN, "<|vision_start|><|image_pad|><|vision_end|>", _qwen2_vl),
    "qwen2_5_vl": (_QWEN, "<|vision_start|><|image_pad|><|vision_end|>", _qwen2_5_vl),
    "qwen3_vl": (_QWEN, "<|vision_start|><|image_pad|><|vision_end|>", _qwen3_vl),
    "paddleocr_vl": (_PADDLE, "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>", _paddleocr_vl),
    "glm_ocr": (_GLM, "<|begin_of_image|><|image|><|end_of_image|>", _glm_ocr),
    "hunyuan_vl": (_HUNYUAN, "<img_start><img_tok><img_end>", _hunyuan_vl),
    "granite_docling": (_IDEFICS, "<image>", _granite_docling),
    "internvl": ({
        "start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }, "<IMG_CONTEXT>", _internvl),
}  # fmt: skip
