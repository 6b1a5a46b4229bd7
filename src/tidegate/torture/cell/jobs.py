"""Jobs of a cell's forked processes besides driver and readers: commands, the judge, the clean-up."""

from __future__ import annotations

import contextlib
import functools
import os
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from tidegate.base.decoders import json_decoder
from tidegate.committers.operations.drop import drop_namespace
from tidegate.committers.operations.verify import verify
from tidegate.errors import CorruptError, StoreNotVerifiedError, TidegateError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.records import Pointer
from tidegate.testing.process.driver import make_driver_of
from tidegate.torture.cell import outside_reader, readers, stray_requests
from tidegate.torture.cell.expectations import Seen
from tidegate.torture.driver import timeouts
from tidegate.torture.driver.driver import Where
from tidegate.torture.driver.side_work import SECOND
from tidegate.torture.history.files import Recorder
from tidegate.torture.history.repairs import mending_noted
from tidegate.torture.judge import verdict as verdicts
from tidegate.torture.judge.check import check
from tidegate.torture.judge.coverage import gaps
from tidegate.torture.judge.verdict import Verdict
from tidegate.torture.outcome import Finding
from tidegate.wal.catch_up import catch_up
from tidegate.wal.fold import View

Work = TypeVar("Work", bound=Callable[..., int])

COMMANDS = "tidegate.cli:app"
PRELOADED = (
    "tidegate.torture.cell.jobs",
    "tidegate.torture.cell.outside_reader",
    "tidegate.cli",
    "typer._adapters",  # otherwise imported by each command, which takes longer than the command
)
NOBODY_ASKED = "no reader asked for the lost rows: whether it would have been refused is not known"
CLIENTS = {
    "file": "tidegate.wal.file.log",
    "kafka": "tidegate.wal.kafka.log",
    "sqlite": "tidegate.sinks.sqlite.store",
    "redis": "tidegate.sinks.redis.store",
    "cassandra": "tidegate.sinks.cassandra.store",
}


def preloaded(wal: str, store: str) -> list[str]:
    """Name the modules that every process of a cell needs, with its log's and store's."""
    kinds = {url.partition(":")[0].partition("+")[0].replace("rediss", "redis") for url in (wal, store)}
    return [*PRELOADED, *(module for kind, module in CLIENTS.items() if kind in kinds)]


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """The judgement of one cell."""

    findings: tuple[Finding, ...] = ()
    unproven: tuple[str, ...] = ()
    counts: dict[str, int] = {}
    errors: dict[str, int] = {}


def ends_with_its_code(work: Work) -> Work:
    """Decorate a job so that it prints a tidegate error, and ends with the error's exit code."""

    @functools.wraps(work)
    def run(*args: str) -> int:
        try:
            return work(*args)
        except TidegateError as error:
            print(f"{type(error).__name__}: {error}", flush=True)  # noqa: T201 - to the cell's folder
            return timeouts.exit_code_of(error)

    return cast("Work", run)


def judge(where_json: str, folder: str, result: str, lost: str = "", *ended: str) -> int:
    """Judge the history, then log and store as they are now; write the verdict into the file ``result``.

    The verdict on the history is written at once: it holds whether log and store answer or not. ``ended``:
    the processes that wrote a file of it and ended by themselves. ``lost``: not empty when rows are lost
    permanently. Then reads of them have to be refused, and the store cannot be verified.
    """
    where = json_decoder(Where).decode(where_json)
    verdict = check(Path(folder))
    judged = Judged(
        findings=(
            *(_copied(finding) for finding in verdict.findings),
            *_damage(verdict),
        ),
        unproven=tuple(verdict.unjudged),
        counts=verdict.counts,
        errors=verdict.errors,
    )
    Path(result).write_bytes(msgspec.json.encode(judged))
    if lost:
        unproven = [] if verdict.errors.get(StoreNotVerifiedError.__name__) else [NOBODY_ASKED]
        judged = msgspec.structs.replace(judged, unproven=(*unproven, *judged.unproven))
        Path(result).write_bytes(msgspec.json.encode(judged))
        return 0
    findings, unproven, counts = _verified(where)
    if not findings and not unproven:
        findings, unproven, sent = _strays_refused(where)
        counts["stray requests"] = sent
    with _left_open("readers", findings, unproven):
        kinds = (*readers.KINDS, *((SECOND,) if where.second and listed(where) else ()))
        # Readers that did not end by themselves are reported already.
        kinds = kinds if readers.NAME in ended else ()
        own = (outside_reader.KIND,) if outside_reader.NAME in ended else ()
        unproven += gaps(Path(folder), ended, (*kinds, *own))
    judged = msgspec.structs.replace(
        judged,
        findings=(*findings, *judged.findings),
        unproven=(*unproven, *judged.unproven),
        counts=counts | judged.counts,
    )
    whole = Path(f"{result}.whole")
    whole.write_bytes(msgspec.json.encode(judged))
    whole.replace(result)
    return 0


def _copied(finding: verdicts.Finding) -> Finding:
    """Return a finding on a history as one of a cell."""
    return Finding(**{field: getattr(finding, field) for field in Finding.__struct_fields__})


def _damage(verdict: Verdict) -> list[Finding]:
    """Report CorruptErrors as findings: no fault here damages bytes, so no process may find any damaged."""
    number = verdict.errors.get(CorruptError.__name__, 0)
    if not number:
        return []
    return [
        Finding(
            rule="error",
            invariant="I10",
            what=f"{number} calls of writers or readers raised an error about damaged bytes: see the history",
            expected="no CorruptError",
            seen=CorruptError.__name__,
        )
    ]


def _verified(where: Where) -> tuple[list[Finding], list[str], dict[str, int]]:
    """Verify the log and each of its stores against each other, as ``tidegate verify`` does."""
    findings, unproven = list[Finding](), list[str]()
    counts = {"records of the log": 0, "rows verified": 0}
    with _left_open("verify", findings, unproven):
        for url, options in _stores(where):
            with msgspec.structs.replace(where, store=url, store_options=options).opened() as (log, store):
                report = verify(log, store)
            findings += [
                Finding(rule="verify", invariant="I10", what=one.where, expected=one.expected, seen=one.found)
                for one in report.findings
            ]
            counts["records of the log"] += report.records
            counts["rows verified"] += report.rows
    return findings, unproven, counts


@contextlib.contextmanager
def _left_open(what: str, findings: list[Finding], unproven: list[str]) -> Iterator[None]:
    """Turn errors of log or store into unproven entries, with advice for timeouts.

    CorruptError is a finding: no fault here damages bytes.
    """
    try:
        yield
    except CorruptError as error:
        findings.append(
            Finding(rule=what, invariant="I10", what=str(error), expected="whole", seen="corrupt")
        )
    except TidegateError as error:
        more = f"; {timeouts.MORE_TIME}" if timeouts.exit_code_of(error) in timeouts.NAMES else ""
        unproven.append(f"{what}: {type(error).__name__}: {error}{more}")


def _stores(where: Where) -> list[tuple[str, dict[str, Any]]]:
    """List the URL and options of each store that the log lists."""
    second = [(where.second, dict[str, Any]())] if where.second and listed(where) else []
    return [(where.store, where.store_options), *second]


def listed(where: Where) -> bool:
    """Return whether the log lists the second store."""
    with contextlib.closing(where.open_log()) as log:
        state = catch_up(View(), log).state
    return state is not None and SECOND in state.stores


def _strays_refused(where: Where) -> tuple[list[Finding], list[str], int]:
    """Send the stray requests if no version is in flight, as rows of a decided version are written early."""
    findings, unproven, sent = list[Finding](), list[str](), 0
    with _left_open("stray requests", findings, unproven):
        with contextlib.closing(where.open_log()) as log:
            state = catch_up(View(), log).state
        with contextlib.closing(where.open_store()) as store:
            if state is not None and state.last_version == store.pointer().visible:
                findings, sent = stray_requests.send(store)
    return findings, unproven, sent


@ends_with_its_code
def look(where_json: str, result: str) -> int:
    """Write the visible and the decided version, as ``Seen``, into the file ``result``."""
    where = json_decoder(Where).decode(where_json)
    with contextlib.closing(where.open_store()) as store:
        pointer = store.pointer() if store.identity() is not None else Pointer()
    with contextlib.closing(where.open_log()) as log:
        state = catch_up(View(), log).state
    decided = state.last_version if state is not None else 0
    seen = Seen(pointer.visible, pointer.epoch, decided, pointer.horizon)
    Path(result).write_bytes(msgspec.json.encode(seen))
    return 0


def recover(where_json: str, folder: str, name: str) -> int | None:
    """Run ``tidegate recover`` with the cell's parameters and nothing of the environment.

    ``name``: of the history in the folder, which notes what the command puts back.
    """
    return _command("recover", json_decoder(Where).decode(where_json), Path(folder), name, "--jobs", "1")


def repair(where_json: str, folder: str, name: str, *more: str) -> int | None:
    """Run ``tidegate repair``, as ``recover`` is run, with ``more`` options."""
    return _command("repair", json_decoder(Where).decode(where_json), Path(folder), name, *more)


@ends_with_its_code
def keys(where_json: str, result: str) -> int:
    """Write the keys of the existing hashes of rows into the file ``result``."""
    from tidegate.torture.driver.redis_faults import ROWS, keys_of

    hashes = [key.decode() for key in keys_of(json_decoder(Where).decode(where_json)) if ROWS.match(key)]
    Path(result).write_bytes(msgspec.json.encode(hashes))
    return 0


def _command(command: str, where: Where, folder: Path, name: str, *more: str) -> int | None:
    app = pkgutil.resolve_name(COMMANDS)  # looked up by name, because this layer is below the command line
    for each in [each for each in os.environ if each.startswith("TIDEGATE_")]:
        del os.environ[each]
    wal_config, store_config = (folder / "work" / f"{of}.properties" for of in ("wal", "store"))
    argv = [command, "--force", *more, "--wal", where.wal, "--store", where.store]
    argv += ["--store", f"{SECOND}={where.second}"] if where.second and listed(where) else []
    argv += ["--namespace", where.namespace, *(["--allow-unsafe"] if where.allow_unsafe else [])]
    argv += config_file("--wal-config", where.wal_options, wal_config)
    argv += config_file("--store-config", where.store_options, store_config)
    try:
        with Recorder(folder, name, role="command") as recorder, mending_noted(recorder, where.namespace):
            app(argv, prog_name="tidegate")
    finally:
        wal_config.unlink(missing_ok=True)
        store_config.unlink(missing_ok=True)
    return None


def config_file(option: str, options: Mapping[str, object], path: Path) -> list[str]:
    """Write the options into a file, as the command line takes them, that only this user can read.

    They may include a password.
    """
    if not options:
        return []
    path.touch(mode=0o600)
    shown = {
        name: str(value).lower() if isinstance(value, bool) else value for name, value in options.items()
    }
    path.write_text("".join(f"{name}={value}\n" for name, value in shown.items()))
    return [option, str(path)]


@ends_with_its_code
def drop(where_json: str) -> int:
    """Remove the cell's namespace from store and log, permanently. Repeatable."""
    where = json_decoder(Where).decode(where_json)
    with where.opened() as (log, store):
        endpoints = Endpoints(where.namespace, where.wal, where.store, where.wal_options, where.store_options)
        drop_namespace(make_driver_of(endpoints, log, store, Options()))
    return 0
