"""A checkpoint as transformers loads it by itself, with its own attention."""

from __future__ import annotations

from typing import Any

import torch
from ops.bench.engines.adapters.interface import Setup
from transformers import AutoModelForCausalLM


def load_model(setup: Setup) -> Any:
    """In the checkpoint's own dtype, with the number of threads set."""
    if setup.threads:
        torch.set_num_threads(setup.threads)
    return AutoModelForCausalLM.from_pretrained(setup.folder, dtype="auto").to(setup.device).eval()
