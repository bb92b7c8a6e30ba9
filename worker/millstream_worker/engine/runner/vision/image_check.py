"""Checks that images are put into prompts as transformers' own model puts them: one unit of a small image,
encoded and put in the place of its tokens, beside what the whole model would hand to its text layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import ImagePiece
from millstream_worker.engine.runner.model.load import LoadedModel
from millstream_worker.engine.runner.self_check.deviation import TOLERANCE, Mismatch, compare, deviation
from millstream_worker.engine.runner.vision.image_features import ImageFeatures
from millstream_worker.engine.runner.vision.image_steps import ROTARY, in_two_rows
from millstream_worker.engine.runner.vision.tower import Tower
from millstream_worker.images.processor import ImageProcessor, PreparedImage

_SIZE = (64, 48)  # of the image, which is large enough for a patch of any model
_KEY = ("", b"")


@torch.inference_mode()
def check_images(tower: Tower, processor: ImageProcessor, loaded: LoadedModel) -> float:
    """Returns the largest deviation. Raises Mismatch."""
    noise = np.random.default_rng(0).integers(0, 256, (*reversed(_SIZE), 3), dtype=np.uint8)
    try:
        prepared = processor.prepare(Image.fromarray(noise))
        tokens, mine = _own(tower, prepared, processor.placeholder_id, loaded)
        theirs = tower.handed_to_text(prepared.arrays, tokens, loaded.model.get_input_embeddings())
        _check_positions(tower, prepared, tokens, theirs["position_ids"])
    except Mismatch:
        raise
    except Exception as error:  # of transformers' code, or a damaged processor
        raise Mismatch(f"a first image could not be read: {type(error).__name__}: {error}") from error
    _check_zeros(tower, prepared)
    _check_rotary(tower, prepared, tokens, loaded)
    expected = [theirs["inputs_embeds"][0], *(theirs.get("deepstack_visual_embeds") or ())]
    return compare(mine, torch.stack(expected), "an image in a prompt", TOLERANCE[loaded.dtype])


def _check_rotary(tower: Tower, prepared: PreparedImage, tokens: Tensor, loaded: LoadedModel) -> None:
    """Takes note of how RoPE of several axes lies. Raises Mismatch if it is not the text half's own where all
    axes are equal."""
    if tower.rotary is None or loaded.heads.body is None:
        return
    own = loaded.heads.body.call.module.get_submodule(ROTARY)
    states = torch.zeros(1, 8, 1, dtype=torch.float32, device=loaded.device)
    positions = torch.arange(8, device=loaded.device)[None]
    wanted = torch.stack(own(states, positions))
    axes = positions.expand(len(_positions(tower, prepared, tokens)), 1, 8)
    found = torch.stack(tower.rotary(states, axes)).reshape(wanted.shape)
    limit = TOLERANCE[torch.float32]
    if deviation(found, wanted) <= limit:
        return
    tower.interleaved = True
    compare(in_two_rows(found), wanted, "RoPE of several axes", limit)


def _positions(tower: Tower, prepared: PreparedImage, tokens: Tensor) -> np.ndarray[Any, Any]:
    images = [(prepared.arrays, ((0, tokens.shape[1]),))]
    return tower.rope_positions(tokens[0].cpu().numpy(), images).axes


def _check_zeros(tower: Tower, prepared: PreparedImage) -> None:
    """Raises Mismatch if the model leaves units out whose floats are all 0.0, and a byte becomes that."""
    share = prepared.tokens.features // tower.units(prepared.arrays)
    for byte in np.flatnonzero((tower.float_table == 0.0).all(0)):
        plain = {**prepared.arrays, "pixel_values": np.full_like(prepared.arrays["pixel_values"], byte)}
        if tower.encode(plain, 0).shape[1] != share:
            raise Mismatch(f"a unit of bytes {byte} is left out")


def _check_positions(tower: Tower, prepared: PreparedImage, tokens: Tensor, expected: Tensor | None) -> None:
    """Raises Mismatch if RoPE of several axes would have other positions than the whole model's [A, 1, T]."""
    if tower.rotary is None:
        return
    mine = _positions(tower, prepared, tokens)
    if expected is None or not np.array_equal(mine, expected[:, 0].cpu().numpy()):
        raise Mismatch("an image in a prompt has other positions")


def _own(
    tower: Tower, prepared: PreparedImage, placeholder: int, loaded: LoadedModel
) -> tuple[Tensor, Tensor]:
    """Returns the tokens [1, F] of the first unit, and [1 + layers, F, size]: their embeddings with features
    in place, and what the layers add to them."""
    images, units = ImageFeatures(tower), tower.units(prepared.arrays)
    if prepared.tokens.features % units:
        raise Mismatch(f"{prepared.tokens.features} tokens stand for an image of {units} equal units")
    images.hold(_KEY, prepared.tokens.features, prepared.packed())
    images.encode([(_KEY, 0)])
    share = prepared.tokens.features // units
    tokens = torch.full((1, share), placeholder, device=loaded.device)
    piece = ImagePiece(_KEY, 0, 0, share)
    levels = [images.put_into(loaded.model.get_input_embeddings()(tokens)[0], [piece])]
    for layer in range(tower.layers):
        levels.append(torch.zeros_like(levels[0]))
        images.add_to(levels[-1][None], [piece], layer)
    return tokens, torch.stack(levels)
