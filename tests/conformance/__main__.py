"""Install each version once, start a server, a worker, a store and a gateway; each version judges them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from support.gateway import gateway
from support.servers.servers import Server, free_port
from support.workers.counting_worker import model_name, worker_process, write_tokenizer

CHECKS = Path(__file__).with_name("client_checks.py")
VENVS = Path(sys.prefix) / "conformance"
# 1.40 gives httpx an argument that newer ones do not take.
VERSIONS = {
    "1.40.0": ["openai==1.40.0", "httpx<0.28"],
    "1.109.1": ["openai==1.109.1"],
    "2.8.0": ["openai==2.8.0"],
    "newest": ["openai"],
}
S3_SERVER = ["moto[s3]", "flask", "flask-cors"]
BUCKET = "conformance"


def main() -> int:
    pythons = {version: python_of(f"openai-{version}", packages) for version, packages in VERSIONS.items()}
    failed = []
    with Server("valkey") as server, tempfile.TemporaryDirectory() as folder:
        tokenizer = write_tokenizer(Path(folder), chat=True)
        with (
            worker_process(server, model_name(tokenizer)),
            s3() as url,
            gateway(server.url, "--files-url", url) as door,
        ):
            for version, python in pythons.items():
                print(f"--- {version}", flush=True)
                done = subprocess.run([str(python), str(CHECKS), door.url], check=False, timeout=180)
                failed += [version] if done.returncode else []
    print(f"failed: {', '.join(failed)}" if failed else "all versions passed")
    return bool(failed)


@contextlib.contextmanager
def s3() -> Iterator[str]:
    """Where the gateway keeps files: a bucket of a stand-in for S3, for as long as it is needed."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    python = python_of("s3", S3_SERVER)
    process = subprocess.Popen(
        [str(python), "-m", "moto.server", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.environ |= {
        "AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any",
    }  # fmt: skip
    try:
        create_bucket(f"{address}/{BUCKET}")
        yield f"s3://{BUCKET}/files"
    finally:
        process.kill()
        process.wait()


def create_bucket(url: str) -> None:
    """As soon as the server is there."""
    scope = "Credential=any/20260101/us-east-1/s3/aws4_request"
    request = urllib.request.Request(
        url, method="PUT", headers={"Authorization": f"AWS4-HMAC-SHA256 {scope}"}
    )
    for _ in range(100):
        with contextlib.suppress(urllib.error.URLError), urllib.request.urlopen(request):
            return
        time.sleep(0.1)
    raise AssertionError(f"{url} cannot be created")


def python_of(name: str, packages: list[str]) -> Path:
    """The interpreter of a virtual environment with these packages; made once, but for the newest client."""
    folder = VENVS / name
    python = folder / "bin" / "python"
    if not python.exists() or packages == ["openai"]:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--upgrade", *packages]
        subprocess.run(pip, check=True)
    return python


if __name__ == "__main__":
    sys.exit(main())
