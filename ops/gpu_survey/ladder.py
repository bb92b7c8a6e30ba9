"""The ladder: which parts each step runs, in groups that run side by side. Go up when the step below is green
(ops/pages/running_on_a_gpu.md says what each answers)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_PARTS = "ops.gpu_survey.parts"


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    entry: str  # module:function that takes a Survey
    limit_s: float  # on a GPU's machine
    waits: bool = False  # for the parts beside it to end, before it times anything
    environment: Mapping[str, str] = field(default_factory=dict)


Group = tuple[Part, ...]


def _part(name: str, entry: str, limit_s: float, *, waits: bool = False) -> Part:
    return Part(name, f"{_PARTS}.{entry}", limit_s, waits)


def _llama8b(name: str, workloads: str, **settings: str) -> Part:
    """A whole engine with other settings, on some workloads."""
    own = {"SURVEY_ENGINE": ",".join(map("=".join, settings.items())), "SURVEY_WORKLOADS": workloads}
    return Part(name, f"{_PARTS}.engine:llama8b", 180, environment=own)


def _start(name: str, shape: str, settings: str = "") -> Part:
    """An engine's start alone."""
    own = {"SURVEY_ENGINE": settings, "SURVEY_WORKLOADS": "none"}
    return Part(name, f"{_PARTS}.engine:{shape}", 400, environment=own)


MACHINE = _part("machine", "machine:look", 40)
ATTENTION = _part("attention", "attention:bfloat16", 240)
NARROW = _part("narrow", "attention:others", 240)  # float16, and a layer in float32
GRAPHS = _part("graphs", "cuda_tests:graphs", 240)
ENGINES = _part("engines", "cuda_tests:engines", 240)
SWAPS = _part("swaps", "cuda_tests:swaps", 120)
DRAWS = _part("draws", "cuda_tests:draws", 240)
SAMPLER = _part("sampler", "sampler:draw", 90)

LADDER: dict[str, tuple[Group, ...]] = {
    # Is it right, does it start, and the workloads of the 8B shape. What is worth most comes first.
    "1": (
        (MACHINE,),
        (
            _part("llama8b", "engine:llama8b", 330, waits=True),
            *(ATTENTION, GRAPHS, ENGINES, NARROW, SWAPS, DRAWS),
        ),
        (SAMPLER,),
    ),
    # A small model, where the host decides; the kernels and the products by themselves.
    "2": (
        (MACHINE,),
        (_part("qwen06b", "engine:qwen06b", 200, waits=True), _part("memcheck", "attention:memcheck", 120)),
        (SAMPLER,),
        (_part("kernels", "kernels:as_they_are", 120),),
        (_part("gemm", "products:bfloat16", 60),),
        (_part("check-page", "engine:check_page", 90),),
    ),
    # What each of the engine's means is worth: the same without it.
    "3": (
        (MACHINE,),
        (_llama8b("plain", "decode", compile_model="off", cuda_graphs="off"),),
        (_llama8b("graphs-only", "decode", compile_model="off"),),
        (_llama8b("no-sharing", "shareddoc", shared_attention="off"),),
        (_llama8b("int8-kv", "decode,document", kv_dtype="int8"),),
    ),
    # Tuning of kernels.
    "4": (
        (MACHINE,),
        (_part("variants", "kernels:variants", 180),),
        (_part("kernels", "kernels:as_they_are", 120),),
    ),
    # Weights in 8 and 4 bits.
    "5": (
        (MACHINE,),
        (_part("fp8", "products:float8", 90),),
        (_llama8b("fp8-engine", "decode,single,shareddoc,shared,document,ragged", weights="fp8"),),
        (_llama8b("fp8-lengths", "128to128,1000to1000", weights="fp8", max_rows="1024", kv_memory="100GiB"),),
        (_part("humming", "products:humming", 200),),
    ),
    # On the null GPU: compiles the code that the steps need on the device.
    "warm": (
        (_start("warm8b", "llama8b"),),
        (_start("warm06b", "qwen06b"),),
        (_start("warm8b-fp8", "llama8b", "weights=fp8"),),
        (ATTENTION,),
        (NARROW,),
        (GRAPHS,),
        (ENGINES,),
        (DRAWS,),
        (SAMPLER,),
    ),
}  # fmt: skip


def chosen(step: str, names: frozenset[str]) -> list[Group]:
    """A step's groups with the parts of these names; all parts if there are none. Raises ValueError."""
    groups = LADDER[step]
    known = [part.name for group in groups for part in group]
    if unknown := names - {*known}:
        raise ValueError(f"step {step} has no part {', '.join(sorted(unknown))}; it has {', '.join(known)}")
    kept = (tuple(part for part in group if not names or part.name in names) for group in groups)
    return [group for group in kept if group]
