"""The console script `millstream-worker`. Its libraries are an extra; without them it prints one line."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

from millstream.errors import MissingExtra
from millstream.version import version
from millstream_worker.engine.runner.model_config.model_types import table
from millstream_worker.start_options import CHECK, MODELS, REPLACE_MODEL, VERSION

NEEDED = ("torch", "transformers", "pydantic_settings", "prometheus_client")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: see `millstream_worker.command`."""
    given = sys.argv[1:] if arguments is None else arguments
    if VERSION in given:
        sys.stdout.write(f"millstream-worker {version()}\n")
        return 0
    if MODELS in given:
        sys.stdout.writelines(f"{name:28}{how:16}{why}".rstrip() + "\n" for name, how, why in table())
        return 0
    if any(importlib.util.find_spec(module) is None for module in NEEDED):
        sys.stderr.write(f"millstream-worker: {MissingExtra('worker', 'the worker')}\n")
        return 2
    from millstream_worker.command import check, run

    settings = [argument for argument in given if argument not in (CHECK, REPLACE_MODEL)]
    return check(settings) if CHECK in given else run(settings, replace_model=REPLACE_MODEL in given)


if __name__ == "__main__":
    sys.exit(main())
