"""The locked environment: each library that tidegate, its extras and its tests need, in one version, by hash.

    python tools/locked.py write         the newest versions that fit, for any Python and system (`make lock`)
    python tools/locked.py make FOLDER   an environment of exactly these (`make locked`)
    python tools/locked.py audit         ask whether any has a known vulnerability (`make audit`)

pip and uv refuse files of another hash. ``tools/requirements.lock`` has parts: tools/setup installs each.
pip-audit asks PyPI what is known of vulnerabilities: it is installed for that, in an environment of its own.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "tools" / "requirements.lock"
PYTHON_MIN = "3.10"
QUIET = ("-q", "--disable-pip-version-check")
TITLES = ("installers: written by `make lock`, not by hand; tools/setup installs part by part", "demo", "dev")
INSTALLERS = {"setuptools", "uv"}


def environment(folder: Path, *wanted: str) -> Path:
    """The Python of a new environment with these packages."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    if wanted:
        subprocess.run([str(python), "-m", "pip", "install", *QUIET, *wanted], check=True)
    return python


def compiled(*extras: str, given: tuple[str, ...] = ()) -> str:
    """Return what uv picks for these extras, on any system."""
    asked = [one for extra in extras for one in ("--extra", extra)]
    form = (
        "--universal",
        "--python-version",
        PYTHON_MIN,
        "--no-header",
        "--no-annotate",
        "--no-emit-index-url",
    )
    command = ["uv", "pip", "compile", "-q", "pyproject.toml", *asked, *form, *given]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def in_parts(everything: str, of_demo: str) -> str:
    """Return the lock of everything in three parts, by the names of what the demo needs."""
    entries = re.split(r"\n(?=[A-Za-z0-9])", everything.strip())
    demo = set(re.findall(r"^[A-Za-z0-9._-]+", of_demo, re.MULTILINE)) - INSTALLERS
    parts: list[list[str]] = [[], [], []]
    for entry in entries:
        name = entry.partition("==")[0]
        parts[0 if name in INSTALLERS else 1 if name in demo else 2].append(entry)
    return "".join(
        f"# part {title}\n" + "\n".join(part) + "\n" for title, part in zip(TITLES, parts, strict=True)
    )


def write() -> None:
    """Pick the newest versions and write them."""
    everything = compiled("all", "dev", given=("--generate-hashes",))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as versions:
        versions.write(everything)
        versions.flush()
        of_demo = compiled("cli", "spark", given=("-c", versions.name))
    LOCK.write_text(in_parts(everything, of_demo))


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
