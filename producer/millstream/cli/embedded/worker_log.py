"""The log of this command's own worker, JSON lines among the output of its libraries: the loading steps, and
its last lines in readable form.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from millstream.cli.embedded.embedded_server import tail
from millstream.wire.state.heartbeat import READING_TOKENIZER, STARTING_ENGINE

_STEPS = {  # by the log's event
    "worker starts": "starting the worker",
    "engine started": STARTING_ENGINE,
    "engine loading": "",  # the record has the step
    "engine ready": READING_TOKENIZER,
}
_ENDS = "worker ends"
_MAX_VALUE = 500  # characters of one field: tracebacks are long


class WorkerLog:
    """Read while it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0  # bytes of whole lines

    def steps(self) -> list[str]:
        """Steps that the worker has begun since the last call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        records = [_record(line) for line in whole.decode(errors="replace").splitlines()]
        return [step for record in records if record and (step := _step(record))]

    def reason(self) -> str | None:
        """Why the worker has ended itself, if it says so."""
        try:
            lines = self.path.read_text(errors="replace").splitlines()
        except OSError:
            return None
        ends = [record for line in lines if (record := _record(line)) and record.get("event") == _ENDS]
        return str(ends[-1].get("reason", "")) or None if ends else None

    def tail(self) -> str:
        """The last lines, for an error message."""
        return "\n".join(map(_readable, tail(self.path).splitlines()))


def _step(record: dict[str, Any]) -> str:
    event = record.get("event")
    known = _STEPS.get(event) if isinstance(event, str) else None
    return str(record.get("step", "")) if known == "" else known or ""


def _readable(line: str) -> str:
    record = _record(line)
    if record is None:
        return line
    head = [str(record.pop(name, "")) for name in ("timestamp", "level", "event")]
    return " ".join([*head, *(f"{name}={value!s:.{_MAX_VALUE}}" for name, value in record.items())])


def _record(line: str) -> dict[str, Any] | None:
    """None for a line that is not a record."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
