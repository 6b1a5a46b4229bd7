"""Certificates that servers on this machine and their clients show each other, made with openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

HERE = "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:127.0.0.2,IP:127.0.0.3"


KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
SIGNED = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")


def make_certificates(folder: Path) -> None:
    """ca.pem, and a certificate that it signed, with its key, for a server on this machine and a client."""
    folder.mkdir(parents=True)
    _extensions(
        folder / "ca.ext", "basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign"
    )
    _make(folder, "ca", "-signkey", "ca.key")
    for name in ("server", "client"):
        _extensions(folder / f"{name}.ext", "basicConstraints=critical,CA:FALSE", HERE)
        _make(folder, name, *SIGNED)


def make_expired(folder: Path, name: str) -> None:
    """expired-NAME.pem and its key: as those of ``server`` or ``client``, but for the time, which is over."""
    (folder / f"expired-{name}.ext").write_text((folder / f"{name}.ext").read_text())
    _make(folder, f"expired-{name}", *SIGNED, days=-1)


def make_of_another(folder: Path) -> None:
    """A server's certificate that the same ca.pem signed, of another host than this machine."""
    _extensions(
        folder / "server.ext", "basicConstraints=critical,CA:FALSE", "subjectAltName=DNS:other.example"
    )
    _make(folder, "server", *SIGNED)


def _make(folder: Path, name: str, *by: str, days: int = 2) -> None:
    _openssl(
        folder, "req", *KEY, "-subj", f"/CN=tests-{name}", "-keyout", f"{name}.key", "-out", f"{name}.csr"
    )
    made = ["-days", str(days), "-extfile", f"{name}.ext", "-out", f"{name}.pem"]
    _openssl(folder, "x509", "-req", "-in", f"{name}.csr", *made, *by)


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
