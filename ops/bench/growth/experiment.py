"""How rate and memory grow with what there is more of: rows, context, pool, waiting jobs, workers.

    python -m ops.bench growth [rows] [context] [pool] [queue] [workers] [--model tiny14m]

Each part writes a table, a CSV and a picture. Dashed is the physical limit: what the bytes and FLOPs of the
same work take at the memory's and the matrix units' rates measured in this run, or what the server and its
connection do without any protocol. A part that takes longer than `--seconds` ends early, and says where.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ops.bench import plots
from ops.bench.command_line import add_engine, parsed, parser_of
from ops.bench.growth import engine, queue, workers
from ops.bench.growth.part import Outcome, Setting

PARTS: dict[str, Callable[[Setting], Outcome]] = {
    "rows": engine.rows,
    "context": engine.context,
    "pool": engine.pool,
    "queue": queue.queue,
    "workers": workers.workers,
}


def main() -> None:
    options = _options()
    where = plots.caption("growth", options.device)
    print("\n".join(where))
    for name in options.parts or PARTS:
        with tempfile.TemporaryDirectory(prefix="millstream-growth-") as scratch:
            setting = Setting(options, Path(scratch))
            outcome = PARTS[name](setting)
        print(f"\n{outcome.title}\n\n{plots.markdown(outcome.rows)}", *setting.notes, sep="\n", flush=True)
        write(outcome, options.pictures / f"growth_{name}.png", [*where, *setting.notes])


def write(outcome: Outcome, picture: Path, notes: Sequence[str]) -> None:
    """The picture, and the rows as a CSV file beside it."""
    plots.write_csv(picture.with_suffix(".csv"), outcome.rows)
    plots.draw(picture, outcome.title, outcome.panels, notes)


def _options() -> argparse.Namespace:
    parser = parser_of("growth", __doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--model", default="tiny14m", help="a shape's name, a folder or a hub id")
    parser.add_argument("--quick", action="store_true", help="two small sizes each: does it run?")
    parser.add_argument("--seconds", type=float, default=240.0, help="of a part, about")
    parser.add_argument("--steps", type=int, default=24, help="decode steps that are timed")
    add_engine(parser)
    parser.add_argument("--pictures", type=Path, default=plots.FOLDER)
    options = parsed(parser)
    for name in options.parts:
        if name not in PARTS:
            parser.error(f"no part called {name!r}; there are {', '.join(PARTS)}")
    return options


if __name__ == "__main__":
    main()
