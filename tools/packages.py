"""The list of packages in pyproject.toml, and the wheel and the sdist that are built with it.

    python tools/packages.py              # write the list, from the folders that hold Python files
    python tools/packages.py --check      # exit code 1 where it differs
    python tools/packages.py build DIST   # build the last commit; two builds of one are equal byte for byte

Setuptools finds packages by itself only where folders are not mapped to other names, as ours are.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
LIST = re.compile(r"(?<=\npackages = )\[.*?\n\]", re.DOTALL)


def packages(root: Path, mapping: dict[str, str]) -> list[str]:
    """List the dotted name of every folder that holds Python files, below the mapped ones."""
    return sorted(
        {
            ".".join((package, *path.parent.relative_to(root / folder).parts))
            for package, folder in mapping.items()
            for path in (root / folder).rglob("*.py")
        }
    )


def with_packages(root: Path) -> str:
    """Return the text of pyproject.toml with the list as it has to be."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    mapping = tomllib.loads(text)["tool"]["setuptools"]["package-dir"]
    lines = "".join(f'  "{name}",\n' for name in packages(root, mapping))
    return LIST.sub(f"[\n{lines}]", text, count=1)


def repacked(sdist: bytes, at: int) -> bytes:
    """Return an sdist with its files in order, of one time and of nobody: setuptools gives each its own."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(sdist)) as old,
        gzip.GzipFile("", "wb", fileobj=packed, mtime=at) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime, member.pax_headers = at, {}
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return packed.getvalue()


def build(dist: Path) -> None:
    """Build what the last commit holds, at its time; the wheel is built from the sdist."""

    def git(*words: str) -> bytes:
        return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True).stdout

    os.umask(0o022)  # the wheel has the modes of what is unpacked here
    at = int(git("log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory() as folder:
        tree = git("-c", "tar.umask=0022", "archive", "HEAD")
        subprocess.run(["tar", "-x", "-C", folder], input=tree, check=True)
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist.resolve()), folder]
        subprocess.run(command, check=True, env=os.environ | {"SOURCE_DATE_EPOCH": str(at)})
    for sdist in dist.glob("*.tar.gz"):
        sdist.write_bytes(repacked(sdist.read_bytes(), at))


if __name__ == "__main__":
    if sys.argv[1:2] == ["build"]:
        build(Path(sys.argv[2]))
        sys.exit()
    file, wanted = ROOT / "pyproject.toml", with_packages(ROOT)
    if "--check" in sys.argv:
        if file.read_text(encoding="utf-8") != wanted:
            sys.exit("packages in pyproject.toml differ from the folders: run python tools/packages.py")
    else:
        file.write_text(wanted, encoding="utf-8")
