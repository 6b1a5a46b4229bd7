"""Faults of Spark's own processes: SIGKILL to executors and Python workers, and removed shuffle files.

This is also the module of the daemon from which Spark forks its Python workers (``DAEMON``). A failpoint that
a task reaches there does the fault that the driver has put into the job's local properties.

Only processes of this machine are found. Where the executors are on other hosts, nothing is done, and the
cell is missed.
"""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from tidegate.base import failpoints
from tidegate.base.decoders import json_decoder
from tidegate.errors import ConfigError
from tidegate.torture.history.events import Fault
from tidegate.torture.history.files import SUFFIX, Recorder, boot_id

DAEMON = "tidegate.torture.spark_app.strikes"
EXECUTOR = b"CoarseGrainedExecutorBackend"
"""The JVM's class, in the command line of an executor."""
PROPERTY = "tidegate.torture.strike"
"""The local property of Spark with the strike that a task has to do."""
PRELOADED = ("pyspark.worker", "tidegate.spark.staging.work", "tidegate.torture.spark_app.rows")
LOCAL_DIRS = "SPARK_LOCAL_DIRS"
"""The folders of an executor's blocks, in the environment of its Python workers."""


class TaskStrike(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that the first task does which reaches the failpoint.

    ``name``: of the history in ``folder`` that notes it. ``boot``: of the machine with that folder.
    ``driver``: the driver's process, which is killed too; 0: it continues.
    """

    fault: str
    failpoint: str
    folder: str
    name: str
    boot: str
    driver: int = 0

    @property
    def done(self) -> bool:
        """Whether a process has done it."""
        return Path(self.folder, f"{self.name}{SUFFIX}").exists()


# -- in a task ----------------------------------------------------------------------------------------------


def hit_in_task(name: str) -> None:
    """Do the strike of this task's job, if it is due at this failpoint. For ``failpoints.listen``."""
    from pyspark import TaskContext

    context = TaskContext.get()
    text = None if context is None else context.getLocalProperty(PROPERTY)
    if not text:
        return
    strike = json_decoder(TaskStrike).decode(text)
    if strike.failpoint == name and strike.boot == boot_id() and Path(strike.folder).is_dir():
        _do(strike)


def _do(strike: TaskStrike) -> None:
    """Do it, unless another task has done it."""
    files, pids = list[Path](), list[int]()
    if strike.fault == "shuffle":
        files = shuffle_files(os.environ.get(LOCAL_DIRS, ""))
        if not files:
            return  # another executor has them
        target = f"{len(files)} shuffle files of an executor"
    elif strike.fault == "executor":
        pids = [parent_of(parent_of(os.getpid()))]  # the daemon's parent
        target = f"executor {pids[0]}, in a task"
    else:
        target = f"Python worker {os.getpid()}, in a task"
    if not noted(strike, target):
        return
    for file in files:
        file.unlink(missing_ok=True)
    kill([*([strike.driver] if strike.driver else []), *pids])
    if strike.fault != "shuffle":
        kill([os.getpid()])


def noted(strike: TaskStrike, target: str) -> bool:
    """Note the fault in a history of its own; return False if another process has done so."""
    try:
        recorder = Recorder(Path(strike.folder), strike.name, role="fault")
    except ConfigError:
        return False
    with recorder:
        recorder.note(Fault(kind=strike.fault, target=target, detail=strike.failpoint))
    return True


def shuffle_files(local_dirs: str) -> list[Path]:
    """List the shuffle files in folders of blocks, whose names are separated by commas."""
    folders = [Path(each) for each in local_dirs.split(",") if each]
    return [file for folder in folders for file in folder.rglob("shuffle_*") if file.is_file()]


# -- from the driver ----------------------------------------------------------------------------------------


def executors_of(application: str) -> list[int]:
    """Find the executors of an application on this machine, by their command lines."""
    encoded = application.encode()
    return [pid for pid, line in _command_lines() if EXECUTOR in line and encoded in line]


def python_workers_of(jvms: Iterable[int]) -> list[int]:
    """Find the Python daemons of these JVMs, and the workers that were forked from them."""
    lines = {pid for pid, line in _command_lines() if DAEMON.encode() in line}
    daemons = {pid for pid in lines if parent_of(pid) in {*jvms}}
    return sorted(daemons | {pid for pid in lines if parent_of(pid) in daemons})


def _command_lines() -> Iterator[tuple[int, bytes]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            yield int(folder.name), command_line(int(folder.name))


def command_line(pid: int) -> bytes:
    """Return the command line of a process; empty if it has ended, or is not ours."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def kill(pids: Iterable[int]) -> None:
    """Send SIGKILL to each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    from pyspark import daemon

    for module in PRELOADED:  # once, rather than in each worker
        importlib.import_module(module)
    failpoints.listen(hit_in_task)
    daemon.manager()
