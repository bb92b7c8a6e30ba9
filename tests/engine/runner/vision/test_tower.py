"""A vision tower whose layers the compiled library computes has the features of one that torch computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from support.engine.libraries import built
from support.engine.pages import AnsweredPages
from support.models.vision_checkpoints import picture
from torch import nn

from millstream_worker.engine.runner.linear.panel import PanelLinear
from millstream_worker.engine.runner.vision.gates import Gate
from millstream_worker.engine.runner.vision.tower import Tower, load_tower
from millstream_worker.images.processor import ImageProcessor

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # glm46v's own
CPU = torch.device("cpu")


def kinds_of(tower: Tower) -> Counter[type[nn.Module]]:
    return Counter(type(module) for module in tower.shell.modules())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("kind", ["idefics3", "qwen2_5_vl"])  # GELU; gated SiLU
def test_features_are_those_of_torch(
    kind: str, dtype: torch.dtype, answered: Callable[[str], AnsweredPages]
) -> None:
    folder = str(answered(kind).checkpoint.folder)
    processor = ImageProcessor.load(folder)
    arrays = processor.prepare(picture(3, 200, 120)).arrays
    plain, fast = (
        load_tower(folder, dtype, CPU, processor.float_table(), lambda: None, library)
        for library in (None, built())
    )
    expected, found = plain.encode(arrays, 0), fast.encode(arrays, 0)
    error = {"rtol": 0.05, "atol": 0.02} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(found, expected, **error)
    assert kinds_of(fast)[Gate] > 0
    assert (kinds_of(fast)[PanelLinear] > 0) is (dtype == torch.bfloat16)
    assert not {Gate, PanelLinear} & set(kinds_of(plain))
