"""The engines that can be timed, and their requirements. A new one is a module here with a class that has the
methods of `interface.Adapter`, and a line in ENGINES.
"""

from __future__ import annotations

import importlib
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from ops.bench.engines.adapters.interface import Adapter, Setup

__all__ = ["ENGINES", "PYTHON", "Adapter", "EngineKind", "Named", "Setup", "kind_of", "load", "named"]

PYTHON = ".venv/bin/python"  # of a checkout


@dataclass(frozen=True, slots=True)
class EngineKind:
    """`place`: module and class here. `needs`: the package that must be importable in its interpreter."""

    place: tuple[str, str]
    needs: str
    install: str

    def absent(self, python: str) -> str:
        """The reason why it cannot run under the interpreter `python`; empty if it can."""
        probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({self.needs!r}) is None)"
        try:
            found = subprocess.run([python, "-c", probe], capture_output=True, check=False).returncode == 0
        except OSError as error:
            return f"absent: {python}: {error.strerror}"
        return "" if found else f"absent: no {self.needs} in {python}; {self.install}"


_OWN_ENVIRONMENT = "install it in an environment of its own (ops/bench/engines/README.md) and give"
ENGINES: dict[str, EngineKind] = {
    "millstream": EngineKind(("millstream", "Millstream"), "millstream_worker", "run make setup"),
    "hf-static": EngineKind(("hf_static", "StaticGenerate"), "transformers", "run make setup"),
    "hf-continuous": EngineKind(("hf_continuous", "ContinuousBatching"), "transformers", "run make setup"),
    "vllm": EngineKind(("vllm_offline", "Vllm"), "vllm", f"{_OWN_ENVIRONMENT} --vllm-python PATH"),
    "llama-cpp": EngineKind(("llama", "LlamaCpp"), "llama_cpp", f"{_OWN_ENVIRONMENT} --llama-python PATH"),
}


@dataclass(frozen=True, slots=True)
class Named:
    """An engine as a command line names it."""

    name: str  # of ENGINES
    checkout: Path | None  # of another commit of ours, with its own .venv
    settings: str

    @property
    def within(self) -> str:
        """Its name within its checkout."""
        return f"{self.name}:{self.settings}" if self.settings else self.name


def named(engine: str) -> Named:
    """`engine`: a name of ENGINES; ours also with settings, and of another checkout:
    `millstream@/path/to/checkout:compile_model=on,max_rows=64`. Raises ValueError."""
    place, _, settings = engine.partition(":")
    name, at, checkout = place.partition("@")
    if name not in ENGINES or ((settings or at) and name != "millstream"):
        raise ValueError(
            f"no engine {engine!r}; there are {', '.join(ENGINES)}, and millstream@CHECKOUT:SETTING=VALUE,…"
        )
    if at and not (Path(checkout) / PYTHON).exists():
        raise ValueError(f"engine {engine!r}: no {PYTHON} in {checkout!r}; run make setup there")
    return Named(name, Path(checkout).absolute() if at else None, settings)


def kind_of(engine: str) -> EngineKind:
    """See `named`."""
    return ENGINES[named(engine).name]


def load(engine: str, setup: Setup) -> Adapter:
    """The engine, with its model loaded in this process."""
    module, name = kind_of(engine).place
    kind = getattr(importlib.import_module(f"ops.bench.engines.adapters.{module}"), name)
    made: Adapter = kind(replace(setup, settings=named(engine).settings))
    return made
