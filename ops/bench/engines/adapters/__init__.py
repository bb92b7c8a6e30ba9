"""The engines that can be timed, and what each needs. A new one is a module here with a class that has the
methods of `interface.Adapter`, and a line in ENGINES."""

from __future__ import annotations

import importlib
import subprocess
from dataclasses import dataclass, replace

from ops.bench.engines.adapters.interface import Adapter, Setup

__all__ = ["ENGINES", "Adapter", "EngineKind", "Setup", "kind_of", "load"]


@dataclass(frozen=True, slots=True)
class EngineKind:
    """`place`: module and class here. `needs`: the package that must be importable in its interpreter."""

    place: tuple[str, str]
    needs: str
    install: str

    def absent(self, python: str) -> str:
        """Why it cannot run under the interpreter `python`; empty where it can."""
        probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({self.needs!r}) is None)"
        try:
            found = subprocess.run([python, "-c", probe], capture_output=True, check=False).returncode == 0
        except OSError as error:
            return f"absent: {python}: {error.strerror}"
        return "" if found else f"absent: no {self.needs} in {python}; {self.install}"


_OWN_ENVIRONMENT = "install it in an environment of its own (ops/bench/README.md) and give"
ENGINES: dict[str, EngineKind] = {
    "millstream": EngineKind(("millstream", "Millstream"), "millstream_worker", "run make setup"),
    "hf-static": EngineKind(("hf_static", "StaticGenerate"), "transformers", "run make setup"),
    "hf-continuous": EngineKind(("hf_continuous", "ContinuousBatching"), "transformers", "run make setup"),
    "vllm": EngineKind(("vllm_offline", "Vllm"), "vllm", f"{_OWN_ENVIRONMENT} --vllm-python PATH"),
    "llama-cpp": EngineKind(("llama", "LlamaCpp"), "llama_cpp", f"{_OWN_ENVIRONMENT} --llama-python PATH"),
}


def kind_of(engine: str) -> EngineKind:
    """`engine`: a name of ENGINES, or ours with settings: `millstream:compile_model=on,max_rows=64`. Raises
    ValueError."""
    name, _, settings = engine.partition(":")
    if name not in ENGINES or (settings and name != "millstream"):
        raise ValueError(
            f"no engine {engine!r}; there are {', '.join(ENGINES)}, and millstream:SETTING=VALUE,…"
        )
    return ENGINES[name]


def load(engine: str, setup: Setup) -> Adapter:
    """The engine, with its model loaded in this process."""
    module, name = kind_of(engine).place
    kind = getattr(importlib.import_module(f"ops.bench.engines.adapters.{module}"), name)
    made: Adapter = kind(replace(setup, settings=engine.partition(":")[2]))
    return made
