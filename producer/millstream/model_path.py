"""Says why a path can be no model: before a process starts, and before torch is imported. The content of the
files is checked by the engine, which reads them.
"""

from __future__ import annotations

from pathlib import Path

_MAGIC = b"GGUF"
_OF_MODELS = ("config.json", "tokenizer.json")  # an engine of another kind may need only a tokenizer


def problem_of(model: str) -> str | None:
    """Returns the problem of a model's path; None for one that may be a model, and for a hub id."""
    try:
        path = Path(model).expanduser()
        if path.is_dir():
            return _of_folder(path)
        if path.is_file():
            return _of_file(path)
        if path.exists():
            return "is neither a file nor a folder"
    except (OSError, RuntimeError) as error:  # no permission, a name too long, an unknown user's home
        return f"cannot be read: {error}"
    # on the hub a GGUF file lies in a repository: owner/name/file.gguf
    local = path.is_absolute() or model.startswith((".", "~"))
    if local or (path.suffix == ".gguf" and len(path.parts) < 3):
        return "no such file or folder"
    return None


def _of_folder(folder: Path) -> str | None:
    if any((folder / name).is_file() for name in _OF_MODELS):
        return None
    names = sorted(path.name for path in folder.iterdir())
    if not names:
        return "the folder is empty"
    gguf = next((folder / name for name in names if name.endswith(".gguf")), None)
    remedy = f"to run a GGUF file, name the file: {gguf}" if gguf else "is it the right folder?"
    return f"the folder has no config.json; {remedy}"


def _of_file(file: Path) -> str | None:
    if file.suffix != ".gguf":
        return f"a single file must be a .gguf; of a safetensors model, name the folder: {file.parent}"
    with file.open("rb") as opened:
        return None if opened.read(len(_MAGIC)) == _MAGIC else "is no GGUF file: fetch it anew"
