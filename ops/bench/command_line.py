"""Command lines of the parts: what their parsers have in common."""

from __future__ import annotations

import argparse
import os

from millstream_worker.engine_link.link import engine_environment


def parser_of(part: str, about: str | None) -> argparse.ArgumentParser:
    """Of `python -m ops.bench PART`; `--help` shows the module's docstring as it stands."""
    return argparse.ArgumentParser(
        f"python -m ops.bench {part}", description=about, formatter_class=argparse.RawTextHelpFormatter
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Where the engine computes, and how."""
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile-model", choices=("on", "off"), default="on", help="the engine's layers")
    add_threads(parser)


def add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, default=0, help="of an engine; 0: one for each core")


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options. An engine of this process gets an engine's environment, before torch is imported."""
    options = parser.parse_args()
    os.environ.update(engine_environment(os.environ, options.threads))
    return options
