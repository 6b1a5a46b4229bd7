"""The jars of a server and the Java to run them: fetched with Maven, once, into a folder that git ignores."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from services.support.servers import ROOT


def fetched_jars(name: str, pom: Path, main_jar: str, without_maven: str = "") -> Path:
    """The folder ``.services/name`` with what ``pom`` depends on, fetched at the first call and when the
    file has changed. Several processes may call it at once.

    main_jar: the file that must be there; without_maven: what to do instead where Maven is missing.
    """
    folder = ROOT / ".services" / name
    folder.parent.mkdir(exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made_from = folder / pom.name
        if made_from.is_file() and made_from.read_bytes() == pom.read_bytes():
            return folder
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            fetched = Path(temporary, folder.name)
            _fetch(name, pom, fetched, main_jar, without_maven)
            shutil.rmtree(folder, ignore_errors=True)
            fetched.rename(folder)
    return folder


def _fetch(name: str, pom: Path, folder: Path, main_jar: str, without_maven: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise RuntimeError(
            f"Maven is needed to fetch the jars of {name} for the tests, and mvn is not in PATH. "
            f"Debian, Ubuntu: sudo apt-get install -y maven. {without_maven}".rstrip()
        )
    command = [
        maven,
        "-q",
        "-B",
        "-f",
        str(pom),
        "dependency:copy-dependencies",
        f"-DoutputDirectory={folder}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not (folder / main_jar).is_file():
        said = f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
        raise RuntimeError(f"Maven could not fetch the jars of {name}:\n{said}")
    shutil.copy(pom, folder)


def java(tool: str = "java") -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(tool, path=f"{home}/bin") if home else shutil.which(tool)
    if found is None:
        raise RuntimeError(
            f"Java 17 or newer is needed: no {tool} in JAVA_HOME or PATH; `make setup` finds it"
        )
    return found
