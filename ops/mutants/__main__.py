"""Mutation score: does the suite notice a small fault in the code that decides over jobs, blocks and rows?

    python -m ops.mutants list MUTANTS.json                 choose mutants of this checkout
    python -m ops.mutants run MUTANTS.json [--workers 2]    run the tests that cover each one's line

Mutants are chosen by a fixed seed, 60 from each area. A list that was made of one commit runs on another: a
mutant is found by its function and its line's text, wherever the file stands now; where the line has
changed it is "gone". A mutant is killed when a test fails or takes too long. The tests of a Python line are
those that `coverage` saw run it; of one outside of functions, those of its file; of a Lua line, all tests of
the area. Each worker changes a copy of the checkout, never the checkout itself.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from ops.mutants.choosing import AREAS, Mutant, choose
from ops.mutants.running import ROOT, run


def report(verdicts: Mapping[Mutant, str]) -> str:
    lines = ["| area | mutants | killed | survived | not covered | gone |", "|---|---|---|---|---|---|"]
    for area in AREAS:
        counts = Counter(word for mutant, word in verdicts.items() if mutant.area == area)
        cells = [
            sum(counts.values()),
            *(counts[word] for word in ("killed", "survived", "not covered", "gone")),
        ]
        lines.append(f"| {area} | {' | '.join(map(str, cells))} |")
    rest = [f"- {word}: {mutant}" for mutant, word in verdicts.items() if word in ("survived", "not covered")]
    return "\n".join([*lines, "", *sorted(rest)])


def main() -> None:
    parser = argparse.ArgumentParser("python -m ops.mutants", description=__doc__)
    parser.add_argument("what", choices=["list", "run"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--areas", nargs="+", choices=list(AREAS), default=list(AREAS))
    options = parser.parse_args()
    if options.what == "list":
        options.file.write_text(json.dumps([asdict(mutant) for mutant in choose(ROOT)], indent=1) + "\n")
        return
    listed = [Mutant(**fields) for fields in json.loads(options.file.read_text())]
    mutants = [mutant for mutant in listed if mutant.area in options.areas]
    print(report(run(mutants, options.workers)))


if __name__ == "__main__":
    main()
