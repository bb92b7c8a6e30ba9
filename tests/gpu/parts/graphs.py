"""Tiny models in float32: the tokens of whole engines, eager and replayed, against the CPU's; and what the
tests beside the survey check, where there is pytest."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from gpu.parts.finding import Survey
from support.engine.whole_engine import engine_on, tokens_of
from support.models import checkpoints

_CASES = (("qwen3", "auto"), ("llama", "auto"), ("llama", "int8"))  # model, keys and values
_TESTS = Path(__file__).parents[1] / "test_graphs_on_cuda.py"


def check(survey: Survey) -> None:
    for case, kv_dtype in _CASES:
        survey.attempt(f"{case}, {kv_dtype}, tokens as on the CPU", partial(_tokens, survey, case, kv_dtype))
    survey.attempt(_TESTS.name, partial(_pytest, survey))


def _tokens(survey: Survey, case: str, kv_dtype: str) -> str:
    said: list[str] = []
    ways = ("auto",) if survey.tiny else ("off", "auto")
    with tempfile.TemporaryDirectory() as place:
        folder = checkpoints.build(case, Path(place))
        want = tokens_of(engine_on("cpu", folder, attention="torch", kv_dtype=kv_dtype))
        for way in ways:
            for speculate in ("off", "always"):
                changes = {"cuda_graphs": way, "speculate": speculate, "kv_dtype": kv_dtype}
                engine = engine_on(survey.device, folder, said.append, **changes)
                assert tokens_of(engine) == want, f"others with graphs {way}, speculate {speculate}"
    return "; ".join([f"with graphs {', '.join(ways)}", *(line for line in said if "CUDA graphs" in line)])


def _pytest(survey: Survey) -> str:
    if find_spec("pytest") is None:
        return "not run: there is no pytest"
    # Neither the project's settings nor the fixtures for servers: their plugins need not be there.
    apart = ("-c", "/dev/null", f"--confcutdir={_TESTS.parent}", "--import-mode=importlib")
    quiet = ("-p", "no:cacheprovider", "-p", "no:randomly", "-q", "-x", "-k", "not gemma2 and not gpt2")
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", str(_TESTS), *apart, *quiet], stdout=subprocess.PIPE, text=True
    )
    print(finished.stdout)
    last = (finished.stdout.strip() or "nothing printed").splitlines()[-1]
    if finished.returncode:
        raise AssertionError(last)
    return last
