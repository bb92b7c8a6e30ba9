"""The console script `millstream`. Its libraries are an extra; without them it prints one clear line."""

from __future__ import annotations

import importlib.util
import sys

from millstream.errors import MissingExtra


def main() -> None:
    if any(importlib.util.find_spec(module) is None for module in ("typer", "rich")):
        sys.stderr.write(f"millstream: {MissingExtra('cli', 'the command line')}\n")
        sys.exit(2)
    from millstream.cli.app import run

    run()


if __name__ == "__main__":
    main()
