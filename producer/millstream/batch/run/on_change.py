"""Names the actions of a batch run on rows that it would answer differently now."""

from __future__ import annotations

from enum import StrEnum


class OnChange(StrEnum):
    """The action if lines have changed since they were answered, or their queue's model has."""

    STOP = "stop"
    REDO = "redo"  # remove their rows, and run them again
    KEEP = "keep"  # leave their rows as they are
