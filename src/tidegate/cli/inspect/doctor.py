"""``tidegate doctor``: checks of everything that the guarantees rest on. Writes nothing."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from tidegate.base.checks import Check, Outcome
from tidegate.base.clock import Clock
from tidegate.base.names import NAME, escape
from tidegate.cli.core.app import placed_in, print_message
from tidegate.cli.core.config_files import StoreConfigs, WalConfig, named_files, store_options
from tidegate.cli.core.options import Json, Limit, MaybeNamespace, MaybeWal, Stores, examples
from tidegate.cli.core.output import Rows, on_terminal, print_json, print_parts
from tidegate.cli.core.settings_file import shown_sources
from tidegate.cli.inspect.doctor_disks import check_disk, check_private, check_writable, folder_of
from tidegate.cli.inspect.doctor_limits import check_limits
from tidegate.cli.inspect.doctor_servers import ServerArguments, look_at
from tidegate.errors import ConfigError, TidegateError
from tidegate.options.endpoints import parse_stores
from tidegate.status.probes import LIMIT_S, Probe, timed
from tidegate.wal.record import Folded

EXAMPLES = examples(
    "tidegate doctor",
    "tidegate doctor --store sqlite:///data/store --wal file:///data/wal --namespace flights",
    "tidegate doctor --wal kafka://broker1:9093 --wal-config kafka.properties --namespace flights",
    "tidegate doctor --store redis://cache:6379",
    "tidegate doctor --accept replication --limit 3 -v",
    "tidegate doctor --problems",
)

JAVA_MIN = 17
PYSPARK_MIN, PYSPARK_BELOW = (4, 1), (5,)
PYARROW_MIN = (19,)
CLOCK_WARN_S, CLOCK_FAIL_S = 5, 3600
JAVA_S = 20.0
THIS_RELEASE_US = 1_760_000_000_000_000  # a clock before this release's build time is wrong


class Look(NamedTuple):
    """The look of an outcome on a terminal."""

    mark: str
    style: str


LOOKS = {"fail": Look("✗", "bold red"), "warn": Look("!", "yellow"), "pass": Look("✓", "green")}
"""The outcomes, problems first."""


def doctor(  # noqa: PLR0913 - its options
    ctx: typer.Context,
    store: Stores,
    store_config: StoreConfigs,
    wal: MaybeWal = None,
    namespace: MaybeNamespace = None,
    wal_config: WalConfig = None,
    *,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CHECK",
            help="Let this check fail, by its name or the name's last part; may be given several times.",
        ),
    ] = None,
    limit: Limit = LIMIT_S,
    problems: Annotated[
        bool, typer.Option("--problems", help="Show the failures and warnings alone.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also show the seconds that each check took.")
    ] = False,
    json: Json = False,
) -> None:
    """Check what the promises rest on.

    Java, disks, limits, clock, log and store, how both are set up; without URLs only this machine.
    Each line names the promise at stake; problems are first. Log and stores are asked at once.

    Exit code 1 when a check fails that is not accepted; warnings do not count. Nothing is written.
    """
    given = _given(store, wal, namespace, wal_config, store_config)
    checks = _accepted([*_settings(shown_sources(ctx)), *_checks(given, limit)], accept or [])
    shown = placed_in([check for check in checks if not problems or check.outcome != "pass"])
    if json:
        print_json([check._asdict() for check in shown])
    elif shown:
        _print(sorted(shown, key=lambda check: list(LOOKS).index(check.outcome)), verbose=verbose)
    else:
        print(f"no problem: {len(checks)} checks passed")
    failed = [check.check for check in checks if check.outcome == "fail"]
    if failed:
        print_message(f"failed: {', '.join(failed)}")
        raise typer.Exit(TidegateError.exit_code)


def _settings(origins: str) -> list[Check]:
    """Report where the values come from that no option gave."""
    return [Check("settings", "pass", origins, "that this is the intended store and log")] if origins else []


def _given(
    store: Sequence[str],
    wal: str | None,
    namespace: str | None,
    wal_config: Path | None,
    store_config: Sequence[str],
) -> ServerArguments:
    """Build the arguments. The primary's option file becomes a check; another store's must be valid."""
    if not store:
        return ServerArguments(None, wal, namespace, wal_config, None)
    primary, *also = parse_stores(list(store))
    by_name = named_files(primary.name, store_config)
    own = by_name.pop(primary.name, None)
    others = [dataclasses.replace(ref, options=store_options(by_name.pop(ref.name, None))) for ref in also]
    if by_name:
        raise ConfigError(f"--store-config: there is no store {', '.join(sorted(by_name))}")
    return ServerArguments(primary.url, wal, namespace, wal_config, own, tuple(others), primary.name)


def _accepted(checks: list[Check], names: Sequence[str]) -> list[Check]:
    """Make warnings of the failed checks with these names."""
    for number, name in enumerate(names, 1):
        if not any(_has_name(check, name) for check in checks):
            # The name is not printed: it may be a pasted URL with a login.
            there_are = ", ".join(sorted({check.check.rpartition(": ")[2] for check in checks}))
            print_message(f"--accept, name {number}: no check here has it; the checks are {there_are}")
    return [
        check._replace(outcome="warn", found=f"{check.found} (accepted by --accept)")
        if check.outcome == "fail" and any(_has_name(check, name) for name in names)
        else check
        for check in checks
    ]


def _has_name(check: Check, name: str) -> bool:
    return check.check == name or check.check.endswith(f": {name}")


def _print(checks: Sequence[Check], *, verbose: bool) -> None:
    marks = {outcome: f"{look.mark} " if on_terminal() else "" for outcome, look in LOOKS.items()}
    rows = [
        (
            check.check,
            f"{marks[check.outcome]}{check.outcome}",
            check.found,
            check.promise,
            *([f"{check.seconds:.3f}"] if verbose else []),
        )
        for check in checks
    ]
    columns = ["check", "outcome", "found", "promise at stake", *(["seconds"] if verbose else [])]
    print_parts([Rows(columns, rows, [LOOKS[check.outcome].style for check in checks])])


def _checks(given: ServerArguments, limit_s: float) -> Iterator[Check]:
    machine = Probe(lambda: list(_machine_checks(given)), max(limit_s, JAVA_S))
    seen = look_at(given, limit_s)
    yield from machine.result(lambda why: [Check("machine", "warn", why, "everything")])
    yield check_clock(Clock(), seen.state)
    yield from seen.checks


def _machine_checks(given: ServerArguments) -> Iterator[Check]:
    yield check_python()
    yield check_package("pyarrow", PYARROW_MIN, None, "readers and writers: frames and scans")
    spark = check_package(
        "pyspark", PYSPARK_MIN, PYSPARK_BELOW, "writers: staging and applying; readers do without"
    )
    yield spark
    yield from timed(lambda: [check_java(spark_is_here=not spark.found.startswith("not installed"))])
    for what, url in (("log", given.wal), ("store", given.store)):
        folder = None if url is None else folder_of(url)
        if folder is not None:
            yield check_writable(what, folder)
            yield check_disk(what, folder)
            if given.namespace is not None and NAME.fullmatch(given.namespace):
                yield from check_private(what, folder / escape(given.namespace))
    yield from check_limits([given.wal, given.store, *(ref.url for ref in given.also)])


# -- this machine -----------------------------------------------------------------------------


def check_python() -> Check:
    """Check Python's version."""
    version = f"{sys.version.partition(' ')[0]} at {sys.executable}"
    outcome: Outcome = "pass" if sys.version_info >= (3, 10) else "fail"
    return Check("Python", outcome, version, "everything: 3.10 or newer")


def check_package(name: str, least: tuple[int, ...], below: tuple[int, ...] | None, promise: str) -> Check:
    """Check an installed package's version. Absent is a warning: not every use needs it."""
    versions = ".".join(map(str, least)) + (
        f" or newer, below {'.'.join(map(str, below))}" if below else " or newer"
    )
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "warn", f"not installed; {versions} is needed to write", promise)
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    fits = numbers >= least and (below is None or numbers < below)
    message = version if fits else f"{version}; needs {versions}"
    return Check(name, "pass" if fits else "fail", message, promise)


def check_java(*, spark_is_here: bool) -> Check:
    """Check Java, where Spark's launcher would find it. Without Spark nothing here needs it."""
    promise = "writers: Spark runs on it; readers and recover do without"
    bad: Outcome = "fail" if spark_is_here else "warn"
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    by = "JAVA_HOME" if home else "PATH"
    if java is None:
        return Check("Java", bad, f"not found in JAVA_HOME nor PATH; install {JAVA_MIN} or newer", promise)
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("Java", bad, f"{java} (by {by}) does not run: {error}", promise)
    version = re.search(r'version "(?:1\.)?(\d+)[^"]*"', done.stderr + done.stdout)
    if version is None:
        return Check("Java", bad, f"{java} (by {by}) does not print its version", promise)
    if int(version[1]) < JAVA_MIN:
        return Check("Java", bad, f"{java} (by {by}) is {version[1]}; needs {JAVA_MIN} or newer", promise)
    return Check("Java", "pass", f"{version[1]} at {java} (by {by})", promise)


def check_clock(clock: Clock, state: Folded | None) -> Check:
    """Check the wall clock against this release's build time and the log's last decision."""
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
    message = f"{ahead_s:,.0f} s behind the log's last decision: this clock or the writer's is wrong"
    return Check("clock", outcome, message, promise)
