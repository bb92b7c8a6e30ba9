"""TLS to a real server, with a certificate of our own. On Redis: the embedded Valkey has none."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.hand_worker import hand_worker
from support.servers import Server, binary, free_port

from millstream import AsyncClient, Unavailable


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Self-signed, for this machine; its key lies beside it as `key.pem`."""
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "certificate.pem")]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return tmp_path / "certificate.pem"


@pytest.fixture
def tls_url(certificate: Path) -> Iterator[str]:
    port = free_port()
    server = Server(
        "redis",
        tls_port=str(port),
        tls_cert_file=str(certificate),
        tls_key_file=str(certificate.with_name("key.pem")),
        tls_ca_cert_file=str(certificate),
        tls_auth_clients="no",
    )
    server.start()
    yield f"rediss://127.0.0.1:{port}/0"
    server.remove()


pytestmark = pytest.mark.skipif(
    os.environ.get("CI") != "true" and not (binary("redis") and shutil.which("openssl")),
    reason="needs redis-server and openssl on the PATH",
)


async def test_a_job_goes_through_tls(tls_url: str, certificate: Path) -> None:
    url = f"{tls_url}?ssl_ca_certs={certificate}"
    async with AsyncClient(url) as client, hand_worker(url) as worker:
        submitted = await client.submit("over the wire", stream=True)
        job = await worker.take()
        await job.say("safely")
        await job.end()
        text = [event.text async for event in client.stream(submitted.id)]
        result = await client.wait(submitted.id, timeout_s=30)
    assert "".join(text) == result.choices[0].text == "safely"


async def test_a_certificate_that_nobody_vouches_for_is_refused(tls_url: str) -> None:
    async with AsyncClient(tls_url) as client:
        with pytest.raises(Unavailable, match=r"(?i)certificate"):
            await client.submit("over the wire")
