"""Install each version once, start a server, a worker and a gateway, and let each version judge them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from support.gateway import gateway
from support.servers.servers import Server
from support.workers.counting_worker import model_name, worker_process, write_tokenizer

CHECKS = Path(__file__).with_name("client_checks.py")
VENVS = Path(sys.prefix) / "openai"
# With what each needs beside its requirements: 1.40 gives httpx an argument that newer ones do not take.
VERSIONS = {"1.40.0": ["httpx<0.28"], "1.109.1": [], "2.8.0": [], "newest": []}


def main() -> int:
    pythons = {version: python_of(version, more) for version, more in VERSIONS.items()}
    failed = []
    with Server("valkey") as server, tempfile.TemporaryDirectory() as folder:
        tokenizer = write_tokenizer(Path(folder), chat=True)
        with worker_process(server, model_name(tokenizer)), gateway(server.url) as door:
            for version, python in pythons.items():
                print(f"--- {version}", flush=True)
                done = subprocess.run([str(python), str(CHECKS), door.url], check=False, timeout=180)
                failed += [version] if done.returncode else []
    print(f"failed: {', '.join(failed)}" if failed else "all versions passed")
    return bool(failed)


def python_of(version: str, more: list[str]) -> Path:
    """The interpreter of a virtual environment with this version; made once, but for the newest."""
    folder = VENVS / version
    python = folder / "bin" / "python"
    if not python.exists() or version == "newest":
        wanted = "openai" if version == "newest" else f"openai=={version}"
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--upgrade", wanted, *more]
        subprocess.run(pip, check=True)
    return python


if __name__ == "__main__":
    sys.exit(main())
