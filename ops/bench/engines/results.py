"""All results of a benchmark, as a file: the tables can be made again from it, in other words or with other
percentiles.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.bench.limits.work import Work
from ops.bench.machine import Limits
from ops.bench.measures import Run, best

FOLDER = Path(__file__).parents[1] / "results"


@dataclass(frozen=True, slots=True)
class Measured:
    """One engine on one workload, all its runs; `problem`: the reason why there are none, or fewer."""

    engine: str
    runs: tuple[Run, ...]
    problem: str = ""

    @property
    def best(self) -> Run | None:
        return best(self.runs) if self.runs else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One workload on one model, and all engines on it, in the order they were named in."""

    model: str
    workload: str
    what: str  # rows and lengths
    prompt_tokens: int
    work: Work
    engines: tuple[Measured, ...]


@dataclass(frozen=True, slots=True)
class Report:
    date: str
    commit: str
    machine: str
    load: float  # processes that wanted a core at the start, over a minute: 0 on an idle machine
    command: str
    threads: int
    limits: Limits
    absent: dict[str, str] = field(default_factory=dict)  # engine: the reason, and how to install it
    versions: dict[str, str] = field(default_factory=dict)
    loads: dict[str, dict[str, float]] = field(default_factory=dict)  # seconds, by model and engine
    comparisons: tuple[Comparison, ...] = ()

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps(_plain(self), separators=(",", ":")).replace('{"model"', '\n{"model"') + "\n"
        )

    @classmethod
    def read(cls, path: Path) -> Report:
        data = json.loads(path.read_text())
        comparisons = tuple(_comparison(one) for one in data.pop("comparisons"))
        return cls(**data | {"limits": Limits(**data["limits"]), "comparisons": comparisons})


def _comparison(data: dict[str, Any]) -> Comparison:
    engines = tuple(
        Measured(one["engine"], tuple(map(Run.from_json, one["runs"])), one["problem"])
        for one in data["engines"]
    )
    return Comparison(**data | {"work": Work(**data["work"]), "engines": engines})


def _plain(value: Any) -> Any:
    if isinstance(value, Run):
        return value.as_json()
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if hasattr(value, "__slots__"):
        return {name: _plain(getattr(value, name)) for name in value.__slots__}
    return value
