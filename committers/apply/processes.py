"""Apply in several processes of this machine: for the command line, where there are no executors.

Each process opens log and store for itself and does its share of the works, with the same function
as the executors (``apply.do``). The parent keeps one pipe to each: where log and store are goes in, then
the share, and JSON lines come out (``local_worker``). No process outlives the parent, since each ends
when its pipe is closed.
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
from tidegate.options import Endpoints

logger = logging.getLogger("tidegate")

JOBS_DEFAULT_MAX = 8
JOBS_MAX = 64
IN_MEMORY = "memory:"
"""URLs of what no other process can see."""
ENDS_S = 30.0
"""A process that was told to end, or whose output has ended, is gone long before that."""
PIECE = 64 * 1024

_decoder: msgspec.json.Decoder[Told] = json_decoder(Told)


def jobs_here() -> int:
    """How many processes unless asked otherwise: one for each CPU that this process may use, at most 8."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cpus, JOBS_DEFAULT_MAX)


def local_apply(endpoints: Endpoints, jobs: int, silence_s: float) -> LocalApply | None:
    """What a driver calls for a large version: all works, in at most ``jobs`` processes.

    None when that would be this process alone: one job, or a log or store in memory.
    ConfigError: an option cannot travel.
    """
    if jobs == 1 or any(url.startswith(IN_MEMORY) for url in (endpoints.wal, endpoints.store)):
        return None
    _refuse_what_cannot_travel(endpoints)
    return LocalApply(endpoints, jobs, silence_s)


class LocalApply:
    """Applies in processes of its own, which are started for each call, or ahead of the first one."""

    def __init__(self, endpoints: Endpoints, jobs: int, silence_s: float) -> None:
        self._endpoints, self._jobs, self._silence_s = endpoints, jobs, silence_s
        self._workers: list[_Worker] = []

    def start(self) -> None:
        """Start the processes: they import what they need while the caller goes on. It calls ``close``.

        StoreUnavailableError: one cannot be started.
        """
        while len(self._workers) < self._jobs:
            self._workers.append(_Worker(self._endpoints))

    def close(self) -> None:
        """End every process, wherever it is; may be repeated."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.reap()

    def __call__(self, works: Sequence[ApplyWork]) -> None:
        """On return every work is durable, and the processes have ended; may be repeated.

        A process's error is raised as itself, and the others are ended. StoreUnavailableError, which
        proves nothing, so that the driver applies again: a process was killed, cannot be started, or made
        no progress for ``silence_s``. TidegateError: a process failed otherwise, a defect.
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
    """The works in at most so many runs of neighbours, none empty, of about the same size."""
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
    """One process, from its start to its end, with the one share of the works that it is given."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._what = "a process that applies"
        self._unsent = memoryview(msgspec.json.encode(endpoints) + b"\n")
        self._unread = bytearray()
        self.done = False
        self.heard = time.monotonic()
        try:
            # A session of its own: Ctrl-C is for the parent, who then ends this process.
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
        self.send()  # so that it imports what belongs to log and store before it is given anything

    def give(self, works: tuple[ApplyWork, ...]) -> None:
        """Its share, once; ``send`` sends it."""
        groups = f"{works[0].first_group} to {works[-1].end_group - 1}"
        self._what = f"the process that applies version {works[0].stamp.version} to key groups {groups}"
        self._unsent = memoryview(bytes(self._unsent) + msgspec.json.encode(works) + b"\n")
        self.heard = time.monotonic()

    def send(self) -> bool:
        """Send a piece of what it is told; whether there is more. The pipe stays open."""
        try:
            self._unsent = self._unsent[os.write(self.stdin.fileno(), self._unsent[:PIECE]) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False  # it has ended: its output tells how
        return len(self._unsent) > 0

    def receive(self) -> bool:
        """Hear what it tells; whether there may be more. Its error is raised, and that it ended early."""
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

    def _hear(self, told: Told) -> None:
        match told:
            case Said(name, level, text):
                logging.getLogger(name).log(level, "%s", text)
            case Failed(name, message):
                raise BY_NAME[name](message) if name else TidegateError(f"{self._what} failed: {message}")
            case Done():
                self.done = True
            case _:
                pass  # a sign of progress

    def silent(self, seconds: float) -> TidegateError:
        """The error for a process that tells nothing any more. It is logged, since it is tried again."""
        error = StoreUnavailableError(f"{self._what} made no progress for {seconds} s")
        logger.warning("%s", error)
        return error

    def _ended_early(self) -> TidegateError:
        try:
            code = self._process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            return self.silent(ENDS_S)
        if code >= 0:
            return TidegateError(f"{self._what} ended with exit code {code}; it says why on standard error")
        by = f"signal {-code} ({signal.strsignal(-code)})"
        error = StoreUnavailableError(f"{self._what} was ended by {by}; if memory is short, use fewer jobs")
        logger.warning("%s", error)
        return error

    def kill(self) -> None:
        """End it, wherever it is: what it did is repeatable, and when it is done nothing is lost."""
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
    """Send every job and hear every process until all are done, or one is not."""
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
