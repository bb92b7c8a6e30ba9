"""Each proven type's images, prepared in a process without torch, are what transformers makes of them: the
same token ids, the same floats."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models.vision_checkpoints import VisionCheckpoint, build, picture
from support.models.vision_types import VISION_TYPES

from millstream_worker.images.processor import PROVEN_IMAGES, ImageProcessor, ImagesUnsupported

SIZES = ((60, 90), (200, 40), (7, 5), (90, 60), (128, 128))
OF_TEXTS = ("input_ids", "attention_mask", "pixel_attention_mask", "token_type_ids", "mm_token_type_ids")
TEXTS = ("before ", " between\n", "\n")
PROGRAM = """
import sys
sys.modules["torch"] = None
import numpy as np
from PIL import Image
from pathlib import Path
from millstream_worker.images.processor import ImageProcessor

folder = Path(sys.argv[1])
processor = ImageProcessor.load(folder)
made = {"table": processor.float_table()}
images = [Image.open(path) for path in sorted(folder.glob("picture*.png"))]
for number, image in enumerate(images):
    one = processor.prepare(image)
    made |= {f"tokens{number}": np.array(one.tokens.ids), f"runs{number}": np.array(one.tokens.runs)}
    made |= {f"{number}.{name}": array for name, array in one.arrays.items()}
text = (folder / "text").read_text()
made["whole"] = np.array(processor.ids(text, images[: text.count(processor.placeholder)]))
np.savez(folder / "made.npz", **made)
assert sys.modules["torch"] is None
"""


def _of(kind: str) -> object:
    """A fast test for each way in which pixels lie: tiles, one image, patches."""
    marks = [pytest.mark.xdist_group(f"processor_{kind}")]
    fast = kind in ("idefics3", "mistral3", "qwen2_vl")
    return pytest.param(kind, marks=marks if fast else [*marks, pytest.mark.slow])


@pytest.fixture(scope="module", params=[_of(kind) for kind in sorted(VISION_TYPES)])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A checkpoint, and what a process without torch makes of its images."""
    whole = build(request.param, tmp_path_factory.mktemp(request.param))
    for number, size in enumerate(SIZES):
        picture(number, *size).save(whole.folder / f"picture{number}.png")
    (whole.folder / "text").write_text(written(whole))
    subprocess.run([sys.executable, "-c", PROGRAM, str(whole.folder)], check=True, timeout=100)
    with np.load(whole.folder / "made.npz") as made:
        return whole, dict(made)


def marks_of(whole: VisionCheckpoint) -> tuple[str, str]:
    """The texts between which its processor wants a placeholder."""
    if whole.model.config.model_type != "hunyuan_vl":
        return "", ""
    return whole.processor.image_start_token, whole.processor.image_end_token


def written(whole: VisionCheckpoint) -> str:
    """Texts with two images between them."""
    before, behind = marks_of(whole)
    return f"{before}{whole.processor.image_token}{behind}".join(TEXTS)


def looked_up(table: Any, pixels: Any) -> Any:
    """The floats of bytes: patches have their channels first, images before rows and columns."""
    if pixels.ndim == 2:
        channels = pixels.reshape(len(pixels), 3, -1)
        return np.stack([table[at][channels[:, at]] for at in range(3)], 1).reshape(pixels.shape)
    axis = pixels.ndim - 3
    return np.stack([table[at][pixels.take(at, axis)] for at in range(3)], axis)


def test_all_proven_types_are_tested() -> None:
    assert set(PROVEN_IMAGES) == set(VISION_TYPES)


def test_tokens_and_floats_are_those_of_transformers(case: tuple[VisionCheckpoint, dict[str, Any]]) -> None:
    whole, made = case
    before, behind = marks_of(whole)
    for number, size in enumerate(SIZES):
        image = picture(number, *size)
        text = before + whole.processor.image_token + behind
        own = whole.processor(text=[text], images=[[image]], return_tensors="np")
        own = {name: np.asarray(value) for name, value in own.items()}
        ids = own["input_ids"][0].tolist()
        assert made[f"tokens{number}"].tolist() == (ids[1:-1] if before else ids)
        pixels = made[f"{number}.pixel_values"]
        assert pixels.dtype == np.uint8
        floats = looked_up(made["table"], pixels)
        assert floats.dtype == own["pixel_values"].dtype == np.float32
        assert np.array_equal(floats, own["pixel_values"])
        assert np.array_equal(
            own.get("pixel_attention_mask", 1), np.ones_like(own.get("pixel_attention_mask", 1))
        )
        others = {name for name in own if name not in OF_TEXTS}
        given = {name.split(".")[1] for name in made if name.startswith(f"{number}.")}
        assert given - others <= {"pixel_attention_mask"}  # of tiles: some models need it
        assert given >= others
        for name in given - {"pixel_values"}:
            assert np.array_equal(made[f"{number}.{name}"], own[name])


def test_runs_are_the_places_of_features(case: tuple[VisionCheckpoint, dict[str, Any]]) -> None:
    whole, made = case
    for number, _ in enumerate(SIZES):
        runs = made[f"runs{number}"].tolist()
        places = [place for first, count in runs for place in range(first, first + count)]
        ids = made[f"tokens{number}"]
        assert places == np.flatnonzero(ids == whole.placeholder).tolist()
        assert all(one[0] + one[1] < other[0] for one, other in pairwise(runs))


def test_the_ids_of_a_whole_are_those_of_transformers(case: tuple[VisionCheckpoint, dict[str, Any]]) -> None:
    whole, made = case
    text = written(whole)
    images = [picture(number, *size) for number, size in enumerate(SIZES[:2])]
    own = whole.processor(text=[text], images=[images], return_tensors="np")
    assert made["whole"].tolist() == np.asarray(own["input_ids"])[0].tolist()


def test_with_torch_it_is_the_same(case: tuple[VisionCheckpoint, dict[str, Any]]) -> None:
    whole, made = case
    processor = ImageProcessor.load(whole.folder)
    one = processor.prepare(picture(0, *SIZES[0]))
    assert list(one.tokens.ids) == made["tokens0"].tolist()
    assert np.array_equal(one.arrays["pixel_values"], made["0.pixel_values"])
    assert np.array_equal(processor.float_table(), made["table"])
    assert (processor.placeholder, processor.placeholder_id) == (
        whole.processor.image_token,
        whole.placeholder,
    )


def test_options_replace_those_of_the_checkpoint(tmp_path: Path) -> None:
    whole = build("idefics3", tmp_path)
    plain, fewer = (
        ImageProcessor.load(whole.folder, options) for options in ("", '{"size": {"longest_edge": 32}}')
    )
    image = picture(1, 60, 90)
    assert fewer.prepare(image).tokens.features < plain.prepare(image).tokens.features


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("lfm2_vl", "its image processor needs torchvision"),
        (
            "llama",
            f"its images are not among the tested ones ({', '.join(PROVEN_IMAGES)})",
        ),
        ("idefics3", "its image processor cannot be loaded: "),
    ],
)
def test_other_checkpoints_are_refused_with_the_reason(tmp_path: Path, kind: str, reason: str) -> None:
    (tmp_path / "config.json").write_text(f'{{"model_type": "{kind}"}}')
    with pytest.raises(ImagesUnsupported) as raised:
        ImageProcessor.load(tmp_path)
    assert str(raised.value).startswith(reason)


def test_a_folder_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImagesUnsupported, match=r"^its config\.json cannot be read"):
        ImageProcessor.load(tmp_path)
