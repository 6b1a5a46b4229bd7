"""The locked environment: each library that tidegate, its extras and its tests need, in one version, by hash.

    python tools/locked.py write         the newest versions that fit, for any Python and system (`make lock`)
    python tools/locked.py make FOLDER   an environment of exactly these (`make locked`)
    python tools/locked.py audit         ask whether any has a known vulnerability (`make audit`)

pip refuses files of another hash. ``requirements.lock`` is written by uv, and pip-audit asks PyPI what is
known of vulnerabilities: both are installed for that, in environments of their own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
PYTHON_MIN = "3.10"
QUIET = ("-q", "--disable-pip-version-check")
HEADER = "# Written by `make lock`; not by hand. `make setup` installs just these.\n"


def environment(folder: Path, *wanted: str) -> Path:
    """The Python of a new environment with these packages."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    if wanted:
        subprocess.run([str(python), "-m", "pip", "install", *QUIET, *wanted], check=True)
    return python


def write() -> None:
    """Pick the newest versions and write them."""
    with tempfile.TemporaryDirectory() as folder:
        python = environment(Path(folder), "uv")
        given = ["--extra", "all", "--extra", "dev", "--universal", "--python-version", PYTHON_MIN]
        asked = ["--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url"]
        compiled = [str(python), "-m", "uv", "pip", "compile", "-q", "pyproject.toml", *given, *asked]
        done = subprocess.run(compiled, cwd=ROOT, check=True, capture_output=True, text=True)
    LOCK.write_text(HEADER + done.stdout)


def make(folder: Path) -> None:
    """Install what is locked, and tidegate itself from here, without asking for anything else."""
    pip = [str(environment(folder)), "-m", "pip", "install", *QUIET]
    # pip's own resolver would take a newer coverage for "coverage[toml]", and refuse it for its hash.
    subprocess.run([*pip, "--require-hashes", "--no-deps", "-r", str(LOCK)], check=True)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", str(ROOT)], check=True)


def audit() -> int:
    """0: nothing is known. PyPI has to be reached."""
    with tempfile.TemporaryDirectory() as folder:
        python = environment(Path(folder), "pip-audit")
        asked = [
            str(python),
            "-m",
            "pip_audit",
            "-r",
            str(LOCK),
            "--disable-pip",
            "--require-hashes",
            "--strict",
        ]
        return subprocess.run(asked, check=False).returncode


def main(arguments: list[str]) -> int:
    match arguments:
        case ["write"]:
            write()
        case ["make", folder]:
            make(Path(folder))
        case ["audit"]:
            return audit()
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
