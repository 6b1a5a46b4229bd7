"""Certificates that servers on this machine and their clients show each other, made with openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

HERE = "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:127.0.0.2,IP:127.0.0.3"


def make_certificates(folder: Path) -> None:
    """ca.pem, and a certificate that it signed, with its key, for a server on this machine and a client."""
    folder.mkdir()
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    _extensions(
        folder / "ca.ext", "basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign"
    )
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"]
    for name, by in (("ca", ["-signkey", "ca.key"]), ("server", signed), ("client", signed)):
        if name != "ca":
            _extensions(folder / f"{name}.ext", "basicConstraints=critical,CA:FALSE", HERE)
        request = [*key, "-subj", f"/CN=tests-{name}", "-keyout", f"{name}.key", "-out", f"{name}.csr"]
        _openssl(folder, "req", *request)
        certificate = ["-in", f"{name}.csr", "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem"]
        _openssl(folder, "x509", "-req", *certificate, *by)


def _extensions(file: Path, *lines: str) -> None:
    identifiers = ["subjectKeyIdentifier=hash"]
    if file.stem != "ca":
        identifiers.append("authorityKeyIdentifier=keyid")
    file.write_text("\n".join([*lines, *identifiers, ""]))


def _openssl(folder: Path, *arguments: str) -> None:
    if shutil.which("openssl") is None:
        raise RuntimeError(
            "openssl makes the tests' certificates and was not found: apt-get install -y openssl"
        )
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"openssl {' '.join(arguments)}: {done.stderr}")
