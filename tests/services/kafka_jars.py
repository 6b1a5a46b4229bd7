"""Kafka's jars, and the Java to run them: fetched with Maven, once, into a folder that git ignores."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

VERSION = "4.1.1"
ROOT = Path(__file__).resolve().parents[2]
POM = Path(__file__).with_name("kafka-pom.xml")


def kafka_jars() -> Path:
    """The folder of Kafka's jars, fetched at the first call. Several processes may call it at once."""
    folder = ROOT / ".services" / f"kafka-{VERSION}"
    folder.parent.mkdir(exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made_from = folder / POM.name
        if made_from.is_file() and made_from.read_bytes() == POM.read_bytes():
            return folder
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            fetched = Path(temporary, folder.name)
            _fetch_jars(fetched)
            shutil.rmtree(folder, ignore_errors=True)
            fetched.rename(folder)
    return folder


def _fetch_jars(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise RuntimeError(
            "Maven is needed to fetch Kafka's jars for the tests, and mvn is not in PATH. "
            "Debian, Ubuntu: sudo apt-get install -y maven. "
            "Or set TIDEGATE_TEST_KAFKA=host:port to a broker that runs already."
        )
    command = [
        maven,
        "-q",
        "-B",
        "-f",
        str(POM),
        "dependency:copy-dependencies",
        f"-DoutputDirectory={folder}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not (folder / f"kafka_2.13-{VERSION}.jar").is_file():
        raise RuntimeError(f"Maven could not fetch Kafka's jars:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    shutil.copy(POM, folder)


def java(tool: str = "java") -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(tool, path=f"{home}/bin") if home else shutil.which(tool)
    if found is None:
        raise RuntimeError(
            f"Java 17 or newer is needed: no {tool} in JAVA_HOME or PATH; `make setup` finds it"
        )
    return found
