"""Pipes, devices, sockets, folders and huge files in the place of each file that commands read."""

import os
import resource
import shutil
import socket
from pathlib import Path

import tidegate
from support.cli import options_for, run
from tidegate.cli.core import settings_file
from tidegate.errors import TidegateError

MEMORY = 6 << 30
WAL, STORE = "wal/flights", "store/flights"
GET, SCAN = "get aircraft N14228", "scan aircraft"

PLACES: dict[str, tuple[str, ...]] = {
    "store/live.alias": ("alias list", f"{GET} --namespace live", "alias set live", "namespaces"),
    f"{STORE}/meta.sqlite": (GET, "namespaces", "status", "history", "verify", "drop --yes --force"),
    f"{STORE}/meta.sqlite-wal": (GET, "namespaces", "recover", "drop --yes --force"),
    f"{STORE}/meta.sqlite-shm": (GET, "namespaces", "recover"),
    f"{STORE}/meta.sqlite-journal": (GET, "namespaces", "recover"),
    f"{STORE}/shard-00.sqlite": (SCAN, "verify", "recover", "vacuum"),
    f"{STORE}/shard-00.sqlite-wal": (SCAN, "recover"),
    STORE: (GET, "namespaces", "recover", "init"),
    f"{WAL}/decisions.log": ("status", "history", "recover", "verify"),
    f"{WAL}/lock": ("adopt --lineage other --yes", "status"),
    f"{WAL}/changelog/SEGMENT": ("verify", "diff 1 2"),
    WAL: ("status", "recover", "init"),
    "export/manifest.json": ("import export --namespace other --yes",),
    "export/PART": ("import export --namespace other --yes",),
    "backup/chain": ("backup backup --check", "backup backup"),
    "backup/lock": ("backup backup",),
    "rows.parquet": (f"{SCAN} --parquet rows.parquet", "quarantine drop rows.parquet"),
    "checkpoint/metadata": ("adopt --checkpoint checkpoint",),
    "options": (f"{GET} --store-config options", "history --wal-config options"),
    "tidegate.toml": ("history", GET),
    "state/tidegate/trusted": ("history",),
    "mirror": ("MIRROR",),
    "mirror-lock": ("MIRROR",),
    "mirror-wal": ("MIRROR",),
}


OF_SETTINGS = ("tidegate.toml", "state/tidegate/trusted")


def _become_pipe(path: Path) -> None:
    os.mkfifo(path)


def _become_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _become_socket(path: Path) -> None:
    os.chdir(path.parent)  # its path may be too long for an address
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


def _become_folder(path: Path) -> None:
    path.mkdir()


def _become_loop(path: Path) -> None:
    path.symlink_to(path.name)


def _become_nothing(path: Path) -> None:
    path.symlink_to("nowhere")


def _become_large(path: Path) -> None:
    path.touch(mode=0o600)
    os.truncate(path, 20 << 30)


KINDS = {
    "pipe": _become_pipe,
    "zeros": _become_zeros,
    "socket": _become_socket,
    "folder": _become_folder,
    "loop": _become_loop,
    "dangling": _become_nothing,
    "large": _become_large,
}


def path_in(root: Path, place: str) -> Path:
    segment = min((root / WAL / "changelog").glob("*.seg")).name
    part = str(min((root / "export").glob("*/*.parquet")).relative_to(root / "export"))
    return root / place.replace("SEGMENT", segment).replace("PART", part)


def try_each(root: Path, made: Path, place: str) -> None:
    """In a process of its own: put each kind of file in the place, and do all that reads it."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    settings_file.PIPE_WAIT_S = 0.1
    os.environ["XDG_STATE_HOME"] = f"{root}/state"
    for option in options_for(root):
        name, _, value = option.removeprefix("--").partition("=")
        os.environ[f"TIDEGATE_{name.upper()}"] = value
    for kind, become in KINDS.items():
        for command in PLACES[place]:
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(made, root)
            path = path_in(root, place)
            if place not in OF_SETTINGS:
                (root / "tidegate.toml").unlink()
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
            become(path)
            os.chdir(root)
            print(f"{kind}, {command}: {_outcome(root, command)}", flush=True)


def _outcome(root: Path, command: str) -> str:
    if command == "MIRROR":
        try:
            tidegate.connect_mirror(f"sqlite://{root}/store", "flights", ["aircraft"], path="mirror").close()
        except TidegateError as error:
            return f"refused, {error}"
        return "done"
    result = run(*command.split())
    if result.exit_code not in (0, *range(2, 20)):
        return f"FAULT, {result.exit_code}: {result.exception!r} {result.output[-500:]}"
    return f"{'refused' if result.exit_code else 'done'}, {' '.join(result.output.split())[:300]}"
