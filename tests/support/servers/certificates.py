"""An authority of our own, and certificates that it has signed: made by openssl, for some hours."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from support.servers.servers import free_port


def has_openssl() -> bool:
    return shutil.which("openssl") is not None


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files."""

    certificate: Path
    key: Path


class Authority:
    """`file` is what those have who trust it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        own = self._files("authority")
        _openssl("req", "-x509", *_new_key(own.key), "-subj", "/CN=tests", "-out", own.certificate)
        self._own = own

    @property
    def file(self) -> Path:
        return self._own.certificate

    def sign(self, name: str) -> Certificate:
        """For a server on this machine or for a client, whichever it is used as."""
        made = self._files(name)
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        _openssl("req", "-new", *_new_key(made.key), "-subj", f"/CN={name}", "-out", request)
        signer = ("-CA", self._own.certificate, "-CAkey", self._own.key, "-CAcreateserial")
        _openssl("x509", "-req", "-in", request, *signer, "-extfile", extensions, "-out", made.certificate)
        return made

    def _files(self, name: str) -> Certificate:
        return Certificate(self.folder / f"{name}.pem", self.folder / f"{name}-key.pem")


def tls_options(authority: Authority) -> dict[str, str]:
    """Those of a server that also listens for TLS."""
    files = authority.sign("server")
    return {
        "tls_port": str(free_port()),
        "tls_cert_file": str(files.certificate),
        "tls_key_file": str(files.key),
        "tls_ca_cert_file": str(authority.file),
    }


def _new_key(path: Path) -> tuple[object, ...]:
    return ("-newkey", "rsa:2048", "-nodes", "-keyout", path)


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)
