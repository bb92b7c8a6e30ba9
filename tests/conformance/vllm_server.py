"""vLLM for the CPU beside us, with the same checkpoint and template."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from support.servers.servers import free_port

from conformance.environments import VENVS, NotInstalled

START_S = 300
OWN = {
    "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}  # fmt: skip


@contextlib.contextmanager
def vllm_server(python: Path, checkpoint: Path, context: int) -> Iterator[str]:
    """Its URL. Raises NotInstalled where it does not come up; its log is beside the environments."""
    port = free_port()
    # vLLM's own script: `python -m` puts our folders before its.
    command = [
        str(python.with_name("vllm")), "serve", str(checkpoint), "--served-model-name", "default",
        "--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(context), "--dtype", "float32",
        "--enforce-eager", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | OWN
    with (VENVS / "vllm.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        _until_up(process, f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):  # its engine is a process of its own
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _until_up(process: subprocess.Popen[bytes], url: str) -> None:
    begun_s = time.monotonic()
    while process.poll() is None and time.monotonic() - begun_s < START_S:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
            return
        time.sleep(0.5)
    raise NotInstalled(f"it did not come up in {START_S} s; see {VENVS / 'vllm.log'}")
