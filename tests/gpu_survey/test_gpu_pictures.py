"""Pictures of the figures on GPUs: what is in them, and that the page shows them."""

from __future__ import annotations

from pathlib import Path

import pytest
from ops.bench.models.shapes import LLAMA_8B
from ops.gpu_survey import gpu_pictures
from ops.gpu_survey.carried import ROOT
from ops.gpu_survey.expected import VLLM_H200

PAGE = ROOT / "ops" / "pages" / "running_on_a_gpu.md"


def test_no_figure_passes_the_bound() -> None:
    size = gpu_pictures.size_of_shape(LLAMA_8B)
    for workload in VLLM_H200["llama8b"]:
        bars = gpu_pictures.bars("llama8b", workload, size)
        bound, others = bars.pop("bound"), [*bars.values()]
        assert len(others) == 2
        assert bound < min(others) if workload == "single" else bound > max(others)
    read_s = size.weight_bytes / gpu_pictures.H200.read_bytes_s
    assert gpu_pictures.bound_tokens_s("single", size) == pytest.approx(1 / read_s, rel=0.02)


def test_the_page_shows_each_picture(tmp_path: Path) -> None:
    page = PAGE.read_text("utf-8")
    for workload in VLLM_H200["llama8b"]:
        assert f"(../bench/pictures/{gpu_pictures.path_of(workload).name})" in page
        assert (ROOT / gpu_pictures.path_of(workload)).exists()
    drawn = gpu_pictures.draw(tmp_path / "one.png", "decode", {"llama8b": {"bound": 2.0, "Millstream": 1.0}})
    assert drawn.stat().st_size > 1000
