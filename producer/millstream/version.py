"""The distribution's version, which both packages share, from its metadata."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    try:
        return metadata.version("millstream")
    except metadata.PackageNotFoundError:  # a source tree that nobody has installed
        return "unknown"
