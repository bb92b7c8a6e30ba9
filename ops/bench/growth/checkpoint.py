"""A checkpoint that takes more context than its own."""

from __future__ import annotations

import json
from pathlib import Path


def with_context(folder: Path, tokens: int, where: Path) -> Path:
    """The folder itself if its model takes so many tokens; else the same weights in a new folder under
    `where`. Random weights are equally random at positions beyond their own context.
    """
    config = json.loads((folder / "config.json").read_text())
    if config["max_position_embeddings"] >= tokens:
        return folder
    longer = where / f"{folder.name}-{tokens}"
    longer.mkdir(parents=True)
    for file in folder.iterdir():
        if file.name != "config.json":
            (longer / file.name).symlink_to(file.absolute())
    (longer / "config.json").write_text(json.dumps(config | {"max_position_embeddings": tokens}))
    return longer
