"""Loads the half of a multimodal checkpoint that encodes images, which is transformers' own model without its
text layers, and has it encode them. Knows nothing of steps.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, PretrainedConfig, PreTrainedModel

from millstream_worker.engine.brain.images.held_image import RopePositions
from millstream_worker.engine.runner.checkpoint.quantized.dense import open_dense
from millstream_worker.engine.runner.linear.replace import replace_linear_layers
from millstream_worker.engine.runner.model.weights import named_faults
from millstream_worker.engine.runner.model_config.config_file import load_config
from millstream_worker.engine.runner.model_config.model_types import IMAGE_UNITS
from millstream_worker.engine.runner.model_config.quantization import without_quantization
from millstream_worker.engine.runner.model_config.support import UnsupportedModel, check
from millstream_worker.engine.runner.model_config.text_half import own_names
from millstream_worker.engine.runner.native.library import Library
from millstream_worker.engine.runner.vision.gates import exchange_gates

Arrays = Mapping[str, np.ndarray[Any, Any]]
_FEW = 8  # tokens of the vocabulary that is not used


class _Handed(Exception):
    """The text layers were called."""


class Tower:
    """`float_table` [3, 256]: what the image processor makes of a byte, by channel. `layers`: text layers
    behind which more features are added to the states of an image's tokens, the first ones."""

    def __init__(
        self,
        shell: PreTrainedModel,
        unit_axis: int | None,
        float_table: np.ndarray[Any, Any],
        size: int,
        layers: int = 0,
    ) -> None:
        self.shell = shell
        self.size = size  # of a feature
        self.layers = layers
        self.interleaved = False  # RoPE has each angle twice in a row, and the text half's two rows of them
        self.float_table = float_table
        self._unit_axis = unit_axis
        self._table = torch.from_numpy(float_table).to(shell.device)
        self._taken = set(inspect.signature(shell.get_image_features).parameters)

    @property
    def feature_bytes(self) -> int:
        """Returns the bytes of one feature, with those for the layers."""
        return (1 + self.layers) * self.size * int(self.shell.dtype.itemsize)

    @property
    def rotary(self) -> nn.Module | None:
        """Returns what computes RoPE from positions [A, 1, T] of several axes; None: there is one axis."""
        found: nn.Module | None = self.shell.get_decoder().rotary_emb if self._has_axes else None
        return found

    @property
    def _has_axes(self) -> bool:
        return hasattr(self.shell.model, "get_rope_index")

    @torch.inference_mode()
    def rope_positions(
        self, prompt: np.ndarray[Any, Any], images: Sequence[tuple[Arrays, Sequence[tuple[int, int]]]]
    ) -> RopePositions:
        """Returns the positions that the model's own code gives a prompt with these images, whose features
        stand in these runs."""
        tokens = torch.from_numpy(prompt.astype(np.int64))[None]
        kinds = torch.zeros_like(tokens)
        for _, runs in images:
            for first, count in runs:
                kinds[0, first : first + count] = 1
        grids = torch.cat([torch.from_numpy(np.array(arrays["image_grid_thw"])) for arrays, _ in images])
        axes, offsets = self.shell.model.get_rope_index(tokens, mm_token_type_ids=kinds, image_grid_thw=grids)
        offset = int(torch.as_tensor(offsets[0]).flatten()[0])
        return RopePositions(np.ascontiguousarray(axes[:, 0].numpy().astype(np.int32)), offset)

    def units(self, arrays: Arrays) -> int:
        """Returns how many parts of an image are encoded each by itself: its tiles, or the image."""
        if self._unit_axis is None:
            return 1
        units: int = arrays["pixel_values"].shape[self._unit_axis]
        return units

    @torch.inference_mode()
    def encode(self, arrays: Arrays, unit: int) -> Tensor:
        """Returns the features [1 + layers, F, size] of a unit of an image, which depend on nothing else.
        `arrays`: what the image processor makes of the image, pixels as bytes."""
        given = {name: self._part(value, unit) for name, value in arrays.items() if name in self._taken}
        pixels = self._floats(given.pop("pixel_values"))
        answer = self.shell.get_image_features(
            pixel_values=pixels.to(self.shell.dtype), **given, return_dict=True
        )
        found = [answer.pooler_output, *(getattr(answer, "deepstack_features", None) or ())]
        return torch.stack([_flat(one) for one in found])

    @torch.inference_mode()
    def handed_to_text(self, arrays: Arrays, tokens: Tensor, embedding: nn.Module) -> dict[str, Any]:
        """Returns what transformers' whole model, with this embedding, hands to its text layers for tokens
        [1, T] that stand for the first unit of an image."""
        given = {name: self._part(value, 0) for name, value in arrays.items()}
        pixels = self._floats(given.pop("pixel_values")).to(self.shell.dtype)
        if self._has_axes:
            given["mm_token_type_ids"] = torch.ones_like(tokens)
        handed: dict[str, Any] = {}

        def note(_: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            handed.update(options)
            raise _Handed

        own, hook = self.shell.get_input_embeddings(), None
        self.shell.set_input_embeddings(embedding)
        try:
            hook = self.shell.get_decoder().register_forward_pre_hook(note, with_kwargs=True)
            with contextlib.suppress(_Handed):
                self.shell(input_ids=tokens, pixel_values=pixels, **given, use_cache=False)
        finally:
            self.shell.set_input_embeddings(own)
            if hook is not None:
                hook.remove()
        return handed

    def _part(self, value: np.ndarray[Any, Any], unit: int) -> Tensor:
        axis = self._unit_axis
        one = value.copy() if axis is None or value.ndim <= axis else value.take([unit], axis)
        return torch.from_numpy(one).to(self.shell.device)

    def _floats(self, pixels: Tensor) -> Tensor:
        """Takes bytes [..., 3, height, width], or [patches, 3 x some]."""
        apart = pixels if pixels.ndim > 2 else pixels.view(len(pixels), 3, 1, -1)
        channels = torch.arange(3, device=pixels.device).view(3, 1, 1)
        return self._table[channels, apart.int()].view(pixels.shape)


def _flat(features: Tensor | Sequence[Tensor]) -> Tensor:
    """Takes those of one image, or of a list of one."""
    whole = features if isinstance(features, Tensor) else torch.cat(list(features))
    return whole.reshape(-1, whole.shape[-1])


def load_tower(
    folder: str,
    dtype: torch.dtype,
    device: torch.device,
    float_table: np.ndarray[Any, Any],
    mark: Callable[[], None],
    library: Library | None = None,
) -> Tower:
    """Returns the tower of a checkpoint whose type is among IMAGE_UNITS, its weights in `dtype`. `mark` is
    called with each layer that it computes. `library`: for its layers, on a CPU that has a compiler.
    Raises `UnsupportedModel` where weights are missing or do not fit.
    """
    whole = load_config(folder)
    text = check(whole)
    settings = without_quantization(text, whole)
    config = _without_text(whole)
    with named_faults(whole, folder), open_dense(Path(folder), settings, dtype, device) as stored:
        of_text = own_names(text, whole, stored)
        weights = {name: stored[name] for name in stored if name not in of_text}
        kind = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(whole)]
        shell, found = kind.from_pretrained(
            None,
            config=config,
            state_dict=weights | _left_of_text(kind, config, dtype),
            dtype=dtype,
            attn_implementation="sdpa",
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            device_map=None if device.type == "cpu" else {"": device},
        )
    faults = sorted([*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])])
    if faults:
        raise UnsupportedModel(
            f"{folder}: {len(faults)} weights of its vision tower are missing or do not fit its config.json, "
            f"the first is {faults[0]}"
        )
    _mark_layers(shell, mark)
    if library is not None:
        _compute_by(library, shell, dtype)
    size = config.get_text_config().hidden_size
    layers = len(getattr(config.vision_config, "deepstack_visual_indexes", None) or ())
    return Tower(shell.eval(), IMAGE_UNITS[whole.model_type], float_table, size, layers)


def _without_text(whole: PretrainedConfig) -> PretrainedConfig:
    """Returns a configuration of the whole with no text layers and a vocabulary of a few tokens."""
    config = copy.deepcopy(whole)
    text = config.get_text_config()
    text.num_hidden_layers = 0
    text.vocab_size = _FEW
    if getattr(text, "layer_types", None):
        text.layer_types = []
    config.tie_word_embeddings = text.tie_word_embeddings = False
    for part in (config, text):
        part.pad_token_id = part.bos_token_id = part.eos_token_id = None
    return config


def _left_of_text(
    kind: type[PreTrainedModel], config: PretrainedConfig, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Returns zeros for the parameters of what is left of the text half, which computes nothing."""
    with torch.device("meta"):
        shell = kind(config)
    parts = [shell.get_decoder(), shell.get_input_embeddings(), shell.get_output_embeddings()]
    held = {id(parameter) for part in parts if part is not None for parameter in part.parameters()}
    return {
        name: torch.zeros(parameter.shape, dtype=dtype)
        for name, parameter in shell.named_parameters(remove_duplicate=False)
        if id(parameter) in held
    }


def _compute_by(library: Library, shell: nn.Module, dtype: torch.dtype) -> None:
    """A tile of granite-docling's takes 0.74 of torch's time in bfloat16 on a Xeon with AMX, and 0.97 in
    float32, whose products of a thousand rows torch computes as fast."""
    exchange_gates(shell, library)
    if dtype == torch.bfloat16:
        replace_linear_layers(shell, library)


def _mark_layers(shell: PreTrainedModel, mark: Callable[[], None]) -> None:
    for module in shell.modules():
        if isinstance(module, nn.ModuleList):
            for layer in module:
                layer.register_forward_hook(lambda *_: mark())
