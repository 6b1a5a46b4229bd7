"""``tidegate doctor``: is everything here that the promises rest on? Writes nothing."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import typer

from tidegate.checks import Check, Outcome
from tidegate.cli.common import Json, MaybeNamespace, MaybeStore, MaybeWal, examples, say
from tidegate.cli.fit import misfit
from tidegate.cli.output import print_json, print_table
from tidegate.cli.room import check_room
from tidegate.clock import Clock
from tidegate.errors import ConfigError, TidegateError
from tidegate.options import redact
from tidegate.sinks.open_store import open_store
from tidegate.sinks.store import Identity, Pointer
from tidegate.wal.fold import View, fold_all
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Folded

EXAMPLES = examples(
    "tidegate doctor",
    "tidegate doctor --store sqlite:///data/store --wal file:///data/wal --namespace flights",
)

JAVA_MIN = 17
PYSPARK_MIN, PYSPARK_BELOW = (4, 1), (5,)
PYARROW_MIN = (17,)
DISK_WARN_BYTES, DISK_FAIL_BYTES = 1024**3, 100 * 1024**2
CLOCK_WARN_S, CLOCK_FAIL_S = 5, 3600
THIS_RELEASE_US = 1_760_000_000_000_000  # a clock before this release's making is wrong


def doctor(
    store: MaybeStore = None,
    wal: MaybeWal = None,
    namespace: MaybeNamespace = None,
    *,
    json: Json = False,
) -> None:
    """Check what the promises rest on.

    Java, disks, clock, log and store; without URLs only this machine. Each line names the promise at stake.

    Exit code 1 when a check fails; warnings do not count. Nothing is written.
    """
    checks = list(_checks(store, wal, namespace))
    if json:
        print_json([check._asdict() for check in checks])
    else:
        print_table(
            ["check", "outcome", "found", "promise at stake"],
            [(check.check, check.outcome, check.found, check.promise) for check in checks],
        )
    failed = [check.check for check in checks if check.outcome == "fail"]
    if failed:
        say(f"failed: {', '.join(failed)}")
        raise typer.Exit(TidegateError.exit_code)


def _checks(store: str | None, wal: str | None, namespace: str | None) -> Iterator[Check]:
    yield check_python()
    yield check_package("pyarrow", PYARROW_MIN, None, "readers and writers: frames and scans")
    spark = check_package(
        "pyspark", PYSPARK_MIN, PYSPARK_BELOW, "writers: staging and applying; readers do without"
    )
    yield spark
    yield check_java(spark_is_here=not spark.found.startswith("not installed"))
    for what, url in (("log", wal), ("store", store)):
        folder = None if url is None else folder_of(url)
        if folder is not None:
            yield check_writable(what, folder)
            yield check_disk(what, folder)
    # The store first: what is visible was decided before, so a log read later must have it.
    in_store = None if store is None or namespace is None else check_store(store, namespace)
    in_log = None if wal is None or namespace is None else check_log(wal, namespace)
    state = None if in_log is None else in_log[1]
    yield check_clock(Clock(), state)
    yield from (reached[0] for reached in (in_log, in_store) if reached is not None)
    if in_log is None or in_store is None or in_log[0].outcome != "pass" or in_store[1] is None:
        return
    yield check_one_namespace(state, *in_store[1])
    if state is not None and in_store[1][0] is not None:
        yield from _room(str(wal), str(store), str(namespace), state)


# -- this machine -----------------------------------------------------------------------------


def check_python() -> Check:
    """Python's version."""
    found = f"{sys.version.partition(' ')[0]} at {sys.executable}"
    outcome: Outcome = "pass" if sys.version_info >= (3, 10) else "fail"
    return Check("Python", outcome, found, "everything: 3.10 or newer")


def check_package(name: str, least: tuple[int, ...], below: tuple[int, ...] | None, promise: str) -> Check:
    """An installed package's version. Absent is a warning: not every use needs it."""
    wanted = ".".join(map(str, least)) + (
        f" or newer, below {'.'.join(map(str, below))}" if below else " or newer"
    )
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "warn", f"not installed; {wanted} is needed to write", promise)
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    fits = numbers >= least and (below is None or numbers < below)
    found = version if fits else f"{version}; needs {wanted}"
    return Check(name, "pass" if fits else "fail", found, promise)


def check_java(*, spark_is_here: bool) -> Check:
    """Java, where Spark's launcher would find it. Without Spark nothing here needs it."""
    promise = "writers: Spark runs on it; readers and recover do without"
    bad: Outcome = "fail" if spark_is_here else "warn"
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    by = "JAVA_HOME" if home else "PATH"
    if java is None:
        return Check("Java", bad, f"not found in JAVA_HOME nor PATH; install {JAVA_MIN} or newer", promise)
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("Java", bad, f"{java} (by {by}) does not run: {error}", promise)
    version = re.search(r'version "(?:1\.)?(\d+)[^"]*"', done.stderr + done.stdout)
    if version is None:
        return Check("Java", bad, f"{java} (by {by}) does not tell its version", promise)
    if int(version[1]) < JAVA_MIN:
        return Check("Java", bad, f"{java} (by {by}) is {version[1]}; needs {JAVA_MIN} or newer", promise)
    return Check("Java", "pass", f"{version[1]} at {java} (by {by})", promise)


def folder_of(url: str) -> Path | None:
    """The folder that a file or sqlite URL names, None for any other."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme in ("file", "sqlite") and parts.path else None


def _nearest(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def check_writable(what: str, folder: Path) -> Check:
    """Whether the folder can be written, or made."""
    there = _nearest(folder)
    fits = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    made = "writable" if there == folder else f"can be made below {there}"
    found = f"{folder}: {made if fits else f'{there} is not a folder that this user can write'}"
    promise = "durable before acknowledged (I3)"
    return Check(f"{what}: folder", "pass" if fits else "fail", found, promise)


def check_disk(what: str, folder: Path) -> Check:
    """Free space where the folder is or would be."""
    free = shutil.disk_usage(_nearest(folder)).free
    outcome: Outcome = "fail" if free < DISK_FAIL_BYTES else "warn" if free < DISK_WARN_BYTES else "pass"
    found = f"{free / 1024**3:,.1f} GiB free at {_nearest(folder)}"
    return Check(
        f"{what}: disk", outcome, found, "what is decided can be applied (I4): a full disk stops the line"
    )


def check_clock(clock: Clock, state: Folded | None) -> Check:
    """The wall clock, against this release's making and the log's last decision."""
    promise = "versions by time (as_of), write timestamps, leases"
    now_us = clock.now_us()
    if now_us < THIS_RELEASE_US:
        return Check("clock", "fail", "the clock is years behind; set it right", promise)
    if state is None or not state.decided_at_us:
        return Check("clock", "pass", "not before this release was made", promise)
    ahead_s = (state.decided_at_us - now_us) / 1e6
    if ahead_s <= CLOCK_WARN_S:
        return Check("clock", "pass", "after the log's last decision", promise)
    outcome: Outcome = "fail" if ahead_s > CLOCK_FAIL_S else "warn"
    found = f"{ahead_s:,.0f} s behind the log's last decision: this clock or the writer's is wrong"
    return Check("clock", outcome, found, promise)


# -- log and store ----------------------------------------------------------------------------


def _room(wal: str, store: str, namespace: str, state: Folded) -> Iterator[Check]:
    folder = folder_of(wal)
    free = None if folder is None else shutil.disk_usage(_nearest(folder)).free
    with contextlib.ExitStack() as closing:
        log = open_log(wal, namespace)
        closing.callback(log.close)
        kept = open_store(store, namespace)
        closing.callback(kept.close)
        yield from check_room(log, kept, state, free)


def _reached(what: str, url: str, look: Callable[[], str]) -> Check:
    promise = "everything" if what == "store" else "what is decided becomes visible (I4)"
    try:
        return Check(f"{what}: reachable", "pass", look(), promise)
    except ConfigError as error:
        return Check(f"{what}: reachable", "fail", str(error), promise)
    except (TidegateError, OSError) as error:
        return Check(f"{what}: reachable", "fail", f"{redact(url)}: {error}", promise)


def check_log(url: str, namespace: str) -> tuple[Check, Folded | None]:
    """Whether the decision log can be read from its start to its end."""
    states: list[Folded] = []

    def look() -> str:
        log = open_log(url, namespace)
        try:
            view = fold_all(View(), log.decisions(), log.where)
        finally:
            log.close()
        if view.state is None:
            return f"{log.where}: no namespace yet; the first batch or `tidegate init` makes it"
        states.append(view.state)
        return f"{log.where}: whole, {view.state.last_version} versions decided, {view.void} void records"

    check = _reached("log", url, look)
    return check, states[0] if states else None


def check_store(url: str, namespace: str) -> tuple[Check, tuple[Identity | None, Pointer] | None]:
    """Whether the store answers, and what it says."""
    seen: list[tuple[Identity | None, Pointer]] = []

    def look() -> str:
        kept = open_store(url, namespace)
        try:
            identity = kept.identity()
            pointer = Pointer() if identity is None else kept.pointer()
            seen.append((identity, pointer))
            if identity is None:
                return f"{kept.where}: no namespace yet; the first batch or `tidegate init` makes it"
            return f"{kept.where}: version {pointer.visible} is visible"
        finally:
            kept.close()

    check = _reached("store", url, look)
    return check, seen[0] if seen else None


def check_one_namespace(state: Folded | None, identity: Identity | None, pointer: Pointer) -> Check:
    """Whether log and store belong together."""
    problem = misfit(state, identity, pointer)
    found = problem or (state.namespace if state else "neither has it yet")
    promise = "no version is skipped or invented (I10)"
    return Check("log and store: one namespace", "fail" if problem else "pass", found, promise)
