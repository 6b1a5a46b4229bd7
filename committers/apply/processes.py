"""The apply in several processes of this machine: for the command line, which has no executors.

Each process opens log and store for itself and does its share of the works, with the same function
as the executors (``apply.do``). The parent has one pipe to each: it writes the URLs of log and store, then
the share, and reads JSON lines (``worker.py``). No process outlives the parent, since each ends when its pipe
is closed.
"""

from __future__ import annotations

import itertools
import logging
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import msgspec

from tidegate.base.decoders import json_decoder
from tidegate.committers.apply.apply import ApplyWork
from tidegate.committers.apply.worker import PROGRAM, Done, Failed, Said, Told
from tidegate.errors import BY_NAME, ConfigError, StoreUnavailableError, TidegateError
from tidegate.options.endpoints import Endpoints

logger = logging.getLogger("tidegate")

JOBS_DEFAULT_MAX = 8
JOBS_MAX = 64
IN_MEMORY = "memory:"
"""The scheme of logs and stores that no other process can see."""
ENDS_S = 30.0
"""The wait for a process to end after it was killed, or after its output has ended. It takes much less."""
PIECE = 64 * 1024

_decoder: msgspec.json.Decoder[Told] = json_decoder(Told)


def jobs_here() -> int:
    """Return the default number of processes: one for each CPU that this process may use, at most 8."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cpus, JOBS_DEFAULT_MAX)


def local_apply(endpoints: Endpoints, jobs: int, silence_s: float) -> LocalApply | None:
    """Build the callable by which a driver applies a large version in at most ``jobs`` processes.

    None when that would be this process alone: one job, or a log or store in memory. Raises: ConfigError: an
    option cannot be passed to another process.
    """
    if jobs == 1 or any(url.startswith(IN_MEMORY) for url in (endpoints.wal, endpoints.store)):
        return None
    _refuse_what_cannot_travel(endpoints)
    return LocalApply(endpoints, jobs, silence_s)


class LocalApply:
    """An apply in processes of its own, which are started for each call, or before the first one."""

    def __init__(self, endpoints: Endpoints, jobs: int, silence_s: float) -> None:
        self._endpoints, self._jobs, self._silence_s = endpoints, jobs, silence_s
        self._workers: list[_Worker] = []

    def start(self) -> None:
        """Start the processes, which import their modules meanwhile. The caller has to call ``close``.

        Raises: StoreUnavailableError: one cannot be started.
        """
        while len(self._workers) < self._jobs:
            self._workers.append(_Worker(self._endpoints))

    def close(self) -> None:
        """Kill every process, in any state. Repeatable."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.reap()

    def __call__(self, works: Sequence[ApplyWork]) -> None:
        """Do every work, in shares, and end the processes.

        Durable: on return every work is in the store. Repeatable: yes. Raises: a process's own error, after
        the others were ended. StoreUnavailableError, which proves nothing, so that the driver applies again:
        a process was killed, cannot be started, or made no progress for ``silence_s``. TidegateError: a
        process failed otherwise, a defect.
        """
        try:
            dealt = shares(works, self._jobs)
            while len(self._workers) < len(dealt):
                self._workers.append(_Worker(self._endpoints))
            busy = self._workers[: len(dealt)]
            for worker, share in zip(busy, dealt, strict=True):
                worker.give(share)
            _attend(busy, self._silence_s)
        finally:
            self.close()


def shares(works: Sequence[ApplyWork], jobs: int) -> list[tuple[ApplyWork, ...]]:
    """Cut the works into at most ``jobs`` runs of neighbours, none empty, of about the same size."""
    count = min(jobs, len(works))
    cuts = [len(works) * n // count for n in range(count + 1)] if count else []
    return [tuple(works[first:end]) for first, end in itertools.pairwise(cuts)]


def _refuse_what_cannot_travel(endpoints: Endpoints) -> None:
    for name, value in (*endpoints.wal_options.items(), *endpoints.store_options.items()):
        try:
            arrives = msgspec.json.decode(msgspec.json.encode(value)) == value
        except TypeError:
            arrives = False
        if not arrives:
            kind = type(value).__name__
            msg = f"option {name} is a {kind}, which cannot be passed to another process: apply with one job"
            raise ConfigError(msg)


class _Worker:
    """One process, from its start to its end, with its one share of the works."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._what = "a process that applies"
        self._unsent = memoryview(msgspec.json.encode(endpoints) + b"\n")
        self._unread = bytearray()
        self.done = False
        self.heard = time.monotonic()
        try:
            # A session of its own: Ctrl-C is for the parent, which then ends this process.
            self._process = subprocess.Popen(  # noqa: S603 - this Python, a constant program
                [sys.executable, "-c", PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise StoreUnavailableError(f"{self._what} cannot be started: {error}; use fewer jobs") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.stdin, self.stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self.stdin.fileno(), False)
        os.set_blocking(self.stdout.fileno(), False)
        self.send()  # so that it imports the modules of log and store before it gets its share

    def give(self, works: tuple[ApplyWork, ...]) -> None:
        """Set its share, once; ``send`` sends it."""
        groups = f"{works[0].first_group} to {works[-1].end_group - 1}"
        self._what = f"the process that applies version {works[0].stamp.version} to key groups {groups}"
        self._unsent = memoryview(bytes(self._unsent) + msgspec.json.encode(works) + b"\n")
        self.heard = time.monotonic()

    def send(self) -> bool:
        """Send a piece of its input; return whether there is more. The pipe stays open."""
        try:
            self._unsent = self._unsent[os.write(self.stdin.fileno(), self._unsent[:PIECE]) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False  # it has ended: its output contains the reason
        return len(self._unsent) > 0

    def receive(self) -> bool:
        """Read its output; return whether there may be more. Raises: its error, or that it ended early."""
        try:
            content = os.read(self.stdout.fileno(), PIECE)
        except BlockingIOError:
            return True
        if not content and not self.done:
            raise self._ended_early()
        self.heard = time.monotonic()
        *lines, self._unread = (self._unread + content).split(b"\n")
        for line in lines:
            self._hear(_decoder.decode(line))
        return bool(content)

    def _hear(self, report: Told) -> None:
        match report:
            case Said(name, level, text):
                logging.getLogger(name).log(level, "%s", text)
            case Failed(name, message):
                raise BY_NAME[name](message) if name else TidegateError(f"{self._what} failed: {message}")
            case Done():
                self.done = True
            case _:
                pass  # a sign of progress

    def silent(self, seconds: float) -> TidegateError:
        """Build the error for a process without progress. It is logged, since the work is tried again."""
        error = StoreUnavailableError(f"{self._what} made no progress for {seconds} s")
        logger.warning("%s", error)
        return error

    def _ended_early(self) -> TidegateError:
        try:
            code = self._process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            return self.silent(ENDS_S)
        if code >= 0:
            return TidegateError(f"{self._what} ended with exit code {code}; see its standard error")
        by = f"signal {-code} ({signal.strsignal(-code)})"
        error = StoreUnavailableError(f"{self._what} was ended by {by}; if memory is short, use fewer jobs")
        logger.warning("%s", error)
        return error

    def kill(self) -> None:
        """Kill it, in any state: its work is repeatable, and once it is done nothing is lost."""
        self._process.kill()

    def reap(self) -> None:
        """Wait for its end and close its pipes."""
        try:
            self._process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            logger.warning("%s was killed and is still there after %s s", self._what, ENDS_S)
        self.stdin.close()
        self.stdout.close()


def _attend(workers: Sequence[_Worker], silence_s: float) -> None:
    """Send all shares and read all outputs until every process is done, or one has failed or is silent."""
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.stdin, selectors.EVENT_WRITE, worker.send)
            selector.register(worker.stdout, selectors.EVENT_READ, worker.receive)
        while busy := [worker for worker in workers if not worker.done]:
            quietest = min(busy, key=lambda worker: worker.heard)
            left_s = quietest.heard + silence_s - time.monotonic()
            if left_s <= 0:
                raise quietest.silent(silence_s)
            for key, _ in selector.select(left_s):
                if not key.data():
                    selector.unregister(key.fileobj)
