"""The ways on the architecture page go down: each next file is on the same floor or below."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "ops" / "pages" / "architecture.md"
PACKAGES = (ROOT / "producer" / "millstream", ROOT / "worker" / "millstream_worker")
WAYS = {"Chat", "Batch line", "KV block", "Weight", "Mask", "Setting"}
Rank = tuple[int, ...]


def contracts() -> list[list[set[str]]]:
    """The floors of each contract in pyproject.toml, the highest first: modules that are on one."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    found = [one["layers"] for one in config["tool"]["importlinter"]["contracts"] if one["type"] == "layers"]
    return [[{name.strip() for name in floor.split("|")} for floor in floors] for floors in found]


def rank(module: str) -> Rank:
    """The floors of the module: of its package, of the part of that, and so on; the highest is the least."""
    ranks: list[tuple[int, int]] = []
    for floors in contracts():
        for number, floor in enumerate(floors):
            within = [name for name in floor if module == name or module.startswith(f"{name}.")]
            ranks += [(name.count("."), number) for name in within]
    return tuple(number for _, number in sorted(ranks))


def module_of(path: str) -> str:
    [package] = [package for package in PACKAGES if (package / path).exists()]
    return ".".join((package.name, *Path(path).with_suffix("").parts))


def ways() -> dict[str, list[list[str]]]:
    """Each way's legs, each of its files."""
    section = PAGE.read_text("utf-8").split("## Six ways")[1].split("\n## ")[0]
    found = {}
    for name, way in re.findall(r"^- \*\*([\w ]+):\*\* (.*?)(?=^- |\Z)", section, re.DOTALL | re.MULTILINE):
        found[name] = [re.findall(r"`([^`]+)`", leg) for leg in way.split("⇒")]
    return found


def rises(leg: list[str]) -> Iterator[str]:
    for before, after in pairwise(leg):
        one, other = module_of(before), module_of(after)
        shared = min(len(rank(one)), len(rank(other)))
        if rank(one)[:shared] > rank(other)[:shared]:
            yield f"{before} -> {after}"


def test_the_ways_go_down() -> None:
    found = ways()
    assert set(found) == WAYS
    assert all(sum(map(len, legs)) >= 6 for legs in found.values())
    assert [rise for legs in found.values() for leg in legs for rise in rises(leg)] == []


def test_a_way_that_rises_is_found() -> None:
    assert list(rises(["wire/keys.py", "client/async_client.py"]))
    assert list(rises(["engine/brain/scheduler.py", "engine/engine.py"]))
    assert list(rises(["gateway/http/page.py", "gateway/server.py"]))
    assert not list(rises(["gateway/server.py", "gateway/http/page.py", "wire/keys.py"]))
