"""The world that a word changes: a log, two stores and a folder, with virtual time, and copies of all of it.

Log and stores are the project's own, in memory, so that a copy costs little. Commands run by the command
line's entry, in this process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import re
import shutil
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

import typer.testing
import xxhash
from typer.main import get_command
from typer.testing import CliRunner

from model.commands import answers, truth
from model.commands.query import Driver
from tidegate.base import failpoints
from tidegate.base.clock import Clock
from tidegate.cli import app
from tidegate.cli.core import app as cli_app
from tidegate.cli.core import options, parameters
from tidegate.cli.read import tail
from tidegate.committers import coordinator
from tidegate.errors import BY_NAME, StoreRemovedError, TidegateError
from tidegate.sinks.memory import aliases, store
from tidegate.sinks.memory.namespace import MemoryNamespace
from tidegate.spark.staging import derive, work
from tidegate.wal import memory_log

START_US = 1_800_000_000_500_000
"""Half a second after a step of the timeout, so that microseconds decide nothing."""
PLACE = "commands"
FOLDERS = re.compile("(backup|export|checkpoint|metadata)-")
"""The names of the files and folders that a command is given. It changes no other one."""
EXIT_CODES = {kind.exit_code for kind in BY_NAME.values()}
LEAVE_OUT = re.compile("store ([a-z]+) is not in the list: leave it out")


def place_of(name: str) -> str:
    """Return the place in memory of a store by its name."""
    return PLACE if name == "a" else f"{PLACE}-{name}"


class Killed(BaseException):
    """The process ended at a failpoint; what it had written is in the world."""


class Time:
    """The one clock of the world: of the drivers, the log and the stores."""

    us = START_US
    ids = 0
    letter = ""
    """What new ids are made of, with their number: so words in another order end in the same state."""

    @classmethod
    def monotonic(cls) -> float:
        return cls.us / 1e6

    @classmethod
    @contextlib.contextmanager
    def virtual(cls) -> Iterator[None]:
        """Let every ``Clock`` show this time; a sleep moves it."""

        def sleep(_: Clock, seconds: float) -> None:
            cls.us += round(seconds * 1e6)

        def new_id(_: Clock) -> str:
            cls.ids += 1
            return xxhash.xxh3_64_hexdigest(f"{cls.letter} {cls.ids}".encode())

        def new_token(_: int) -> str:
            return new_id(Clock())

        with (
            mock.patch.multiple(
                Clock,
                now_us=lambda _: cls.us,
                monotonic=lambda _: cls.monotonic(),
                sleep=sleep,
                new_id=new_id,
            ),
            mock.patch.multiple(coordinator, os=mock.Mock(getpid=int), socket=mock.Mock(gethostname=str)),
            mock.patch.object(options, "time", cls),
            mock.patch.object(tail, "time", cls),
            mock.patch.object(typer.testing, "_get_command", return_value=_command),
            mock.patch.object(parameters, "_refuse_memory"),
            mock.patch.object(cli_app, "terminated_like_ctrl_c", contextlib.nullcontext),
            mock.patch.object(cli_app, "command", _commands.setdefault("command", _cached(cli_app.command))),
            mock.patch.object(tempfile, "tempdir", _fast()),
            mock.patch.object(work, "secrets", mock.Mock(token_hex=new_token)),
            mock.patch.object(derive, "secrets", mock.Mock(token_hex=new_token)),
            answers.kept(cls),
        ):
            yield


_commands: dict[str, Any] = {}
_command: Any = get_command(app)
"""Made once: it takes longer than most commands."""


def _cached(make: Any) -> Any:
    made: dict[str, Any] = {}

    def command(name: str) -> Any:
        if name not in made:
            made[name] = make(name)
        return made[name]

    return command


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The end of a command or of a batch. ``killed``: the failpoint; ``crash``: no error of tidegate's."""

    code: int
    text: str
    json: Any = None
    killed: str = ""
    crash: str = ""

    @property
    def done(self) -> bool:
        """Whether what was asked for is so, even if a store besides the primary does not follow."""
        result = " is visible" in self.text or " from now on" in self.text
        shown = self.code == StoreRemovedError.exit_code and result
        return not self.killed and (shown or not self.code)


class World:
    """What a word changes. ``truths``: what may be true, one unless the last command was killed."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="commands-", dir=_fast()))
        self.truths: tuple[truth.Truth, ...] = (truth.Truth(),)
        self.drivers: tuple[Driver, ...] = ()
        self.copies: dict[str, Any] = {}
        self.held: tuple[Any, ...] = ()
        self.word: tuple[str, ...] = ()
        self.files: Files | None = None
        """The folder's files; None: a command may have changed them."""
        self.unchanged: dict[str, Any] | None = None
        """The last copy of all places, while nothing was written since."""
        self.copied: dict[str, dict[Any, Copy]] = {"logs": {}, "spaces": {}}
        """The last copy of each log and namespace: a copy shares those attributes that are as they were."""
        self.start: tuple[Any, ...] = ()
        """The state in which each word begins, once it was made."""
        self.clear()

    @property
    def truth(self) -> truth.Truth:
        """What the operator knows, which is the same in all that may be true."""
        return self.truths[0]

    def clear(self) -> None:
        """Empty log and stores in memory, which open handles have, too, and the folder."""
        nothing: dict[str, Any] = {"logs": {}, "spaces": {}, "aliases": {}, "files": Files()}
        self.put_back(nothing, "logs", "spaces", "files")
        Time.us, Time.ids = START_US, 0

    def close(self) -> None:
        self.clear()
        shutil.rmtree(self.folder)

    # -- locations ------------------------------------------------------------------------------------

    @property
    def wal(self) -> str:
        return f"memory://{PLACE}"

    def url(self, name: str = "a") -> str:
        return f"memory://{place_of(name)}"

    @property
    def urls(self) -> list[str]:
        """The stores as the operator gives them."""
        return [f"{name}={self.url(name)}" for name in self.truth.stores]

    # -- commands -------------------------------------------------------------------------------------

    def run(self, *arguments: object, namespace: str = "", stores: list[str] | None = None) -> Outcome:
        """Run a command of the command line in the operator's settings, to its end or to its kill."""
        settings = {
            "TIDEGATE_WAL": self.wal,
            "TIDEGATE_STORE": " ".join(self.urls if stores is None else stores),
            "TIDEGATE_NAMESPACE": namespace or self.truth.name,
            "COLUMNS": "10000",
        }
        words = [str(each) for each in arguments]
        self.unchanged = None
        if any(FOLDERS.match(word) for word in words):
            self.files = None
        with _in_folder(self.folder):
            result = CliRunner().invoke(app, words, prog_name="tidegate", env=settings)
        error = result.exception
        crash = "" if error is None or isinstance(error, SystemExit) else repr(error)
        if result.exit_code and result.exit_code not in EXIT_CODES:
            crash = crash or f"exit code {result.exit_code}: {result.output}"
        told = None if stores is not None else LEAVE_OUT.search(result.output)
        if told is not None:  # a moved namespace has the list that it had when it was moved
            others = [url for url in self.urls if not url.startswith(f"{told[1]}=")]
            return self.run(*arguments, namespace=namespace, stores=others)
        return Outcome(result.exit_code, result.output, result.stdout, crash=crash)

    def attempt(self, call: Any) -> Outcome:
        """Call a function of the library as a query does; its warnings are in the text."""
        self.unchanged = None
        with _warnings() as shown:
            try:
                found = call()
            except TidegateError as error:
                return Outcome(error.exit_code, "\n".join([*shown, f"{type(error).__name__}: {error}"]))
            except Exception as error:  # noqa: BLE001 - any other error is a finding
                where = traceback.extract_tb(error.__traceback__)[-1]
                return Outcome(1, "\n".join(shown), crash=f"{error!r} at {where.filename}:{where.lineno}")
        return Outcome(0, "\n".join(shown), found)

    # -- copies ---------------------------------------------------------------------------------------

    def places(self) -> dict[str, Any]:
        """Return a copy of log, stores, aliases and files, which is not changed."""
        if self.unchanged is not None:
            return self.unchanged
        logs = {at: each for at, each in memory_log._contents.items() if PLACE in at[0] and each.created}
        spaces = {at: each for at, each in store._spaces.items() if PLACE in at[0] and each.identity}
        for part, existing in (("logs", logs), ("spaces", spaces)):
            before = self.copied[part]
            self.copied[part] = {at: Copy.of(each, before.get(at)) for at, each in existing.items()}
        named = {at: dict(each) for at, each in aliases._places.items() if PLACE in at}
        if self.files is None:
            self.files = Files(answers.files_in(self.folder))
        return {**self.copied, "aliases": named, "files": self.files}

    def put_back(self, kept: dict[str, Any], *parts: str) -> None:
        """Put a copy back, in the objects that open handles have, too."""
        self.unchanged = None
        contents: tuple[tuple[str, Any, Any], ...] = (
            ("logs", memory_log._contents, memory_log._Content),
            ("spaces", store._spaces, MemoryNamespace),
        )
        for part, existing, empty in contents:
            if part in parts:
                nothing = Copy.of(empty())
                for at in kept[part].keys() - existing.keys():
                    existing[at] = empty()
                for at in [at for at in existing if PLACE in at[0]]:
                    kept[part].get(at, nothing).put_into(existing[at])
        if "spaces" in parts:
            for place in [place for place in aliases._places if PLACE in place]:
                aliases._places[place] = dict(kept["aliases"].get(place, {}))
        if "files" in parts:
            self._put_files(kept["files"])

    def _put_files(self, files: Files) -> None:
        if self.files is files:
            return
        existing = answers.files_in(self.folder) if self.files is None else self.files
        for path in existing.keys() - files.keys():
            Path(path).unlink()
        for at, _, _ in os.walk(self.folder, topdown=False):
            if at != str(self.folder):
                with contextlib.suppress(OSError):
                    Path(at).rmdir()  # where it is empty
        for path, content in files.items():
            if existing.get(path) != content:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                Path(path).write_bytes(content)
        self.files = files

    def snapshot(self) -> tuple[Any, ...]:
        drivers = tuple(driver.copy() for driver in self.drivers)
        state = (self.truths, drivers, dict(self.copies), self.held, self.word)
        return self.places(), state, (Time.us, Time.ids, Time.letter)

    def restore(self, kept: tuple[Any, ...]) -> None:
        places, state, (Time.us, Time.ids, Time.letter) = kept
        self.put_back(places, "logs", "spaces", "files")
        self.unchanged = places
        self.truths, drivers, copies, self.held, self.word = state
        self.drivers, self.copies = tuple(driver.copy() for driver in drivers), dict(copies)

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        """Try something, and take it back."""
        kept = self.snapshot()
        try:
            yield
        finally:
            self.restore(kept)

    def parts(self) -> dict[str, str]:
        """Return digests of all that later letters and checks depend on, by part."""
        places = self.places()
        state = {
            **{part: {at: each.digest for at, each in places[part].items()} for part in ("logs", "spaces")},
            "aliases": places["aliases"],
            "truths": [each._replace(exports=(), loads=0) for each in self.truths],
            "exports": [(each.exports, each.loads) for each in self.truths],
            "held": self.held,
            "time": Time.us,
            "drivers": [driver.key() for driver in self.drivers],
        }
        parts = {name: digest_of(part) for name, part in state.items()}
        return {**parts, "files": places["files"].digest, "copies": self.copies.get("digest", "")}

    def files_of(self, folder: str) -> str:
        """A digest of the files below one folder."""
        if self.files is None:
            self.files = Files(answers.files_in(self.folder))
        return self.files.digest_below(f"{self.folder / folder}/")

    def log_digest(self, name: str) -> str:
        """A digest of the log of a namespace."""
        log = self.places()["logs"].get((PLACE, name))
        return "" if log is None else str(log.digest)

    def space_digest(self, name: str, place: str = PLACE, *, whole: bool = False) -> str:
        """A digest of a namespace in a store (the primary): all of it, or what readers of versions see."""
        space = self.places()["spaces"].get((place, name))
        if space is None:
            return ""
        if whole:
            return str(space.digest)
        return " ".join(map(space.digest_of, ("identity", "pointer", "catalog", "floors", "rows")))

    def version_digest(self, name: str, version: int) -> str:
        """A digest of all in the primary that a reader of this version may find: its entry, rows up to it."""
        space = store._spaces[PLACE, name]
        oldest = max([space.pointer.horizon, *space.floors.values()])
        rows = [
            (at, key, [each for each in versions.items() if each[0] <= version])
            for at, of_group in space.rows.items()
            for key, versions in of_group.items()
        ]
        entry, schemas = space.catalog.get(version), sorted(space.schemas)
        return digest_of((space.identity, entry, version, oldest <= version, schemas, sorted(rows)))

    def uuid_of(self, name: str) -> str:
        """Return the uuid of a namespace in the primary; '': it has none."""
        space = store._spaces.get((PLACE, name))
        return "" if space is None or space.identity is None else space.identity.uuid

    def groups_of(self, name: str) -> int:
        """Return the number of key groups of a namespace in the primary; 0: it has none."""
        space = store._spaces.get((PLACE, name))
        return 0 if space is None or space.identity is None else space.identity.key_groups

    # -- kills ----------------------------------------------------------------------------------------

    def passed(self, call: Any) -> list[str]:
        """Call, and return the failpoints that the call passed."""
        hits: list[str] = []
        failpoints.listen(hits.append)
        try:
            call()
        finally:
            failpoints.listen(None)
        return hits

    def killed(self, call: Any, name: str, nth: int = 1) -> Outcome:
        """Call, and end the process when it passes a failpoint the nth time: it writes nothing after that."""
        left, at_kill = nth, {}

        def hit(passed: str) -> None:
            nonlocal left
            left -= passed == name
            if passed == name and left == 0:
                at_kill.update(self.places())
                raise Killed(name)

        failpoints.listen(hit)
        try:
            outcome: Outcome = call()
        except Killed:
            self.put_back(at_kill, "logs", "spaces", "files")
            return Outcome(0, "", killed=name)
        finally:
            failpoints.listen(None)
        return outcome


def _fast() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


class Files(dict[str, bytes]):
    """The files of a folder, which are not changed: others are another object."""

    @functools.cached_property
    def digest(self) -> str:
        return digest_of(self)

    def digest_below(self, folder: str) -> str:
        kept: dict[str, str] = self.__dict__.setdefault("below", {})
        if folder not in kept:
            kept[folder] = digest_of({path: each for path, each in self.items() if path.startswith(folder)})
        return kept[folder]


class Copy(dict[str, Any]):
    """The attributes of a log or a namespace, which are not changed. An attribute has its digest once."""

    def __init__(self, attributes: dict[str, Any], digests: dict[str, str]) -> None:
        super().__init__(attributes)
        self._digests = digests

    @classmethod
    def of(cls, existing: Any, before: Copy | None = None) -> Copy:
        """Copy what is not as it was before."""
        attributes, digests, same = {}, {}, before is not None
        for name, value in vars(existing).items():
            if before is not None and _equal(value, before.get(name)):
                attributes[name] = before[name]
                if name in before._digests:
                    digests[name] = before._digests[name]
            elif name != "lock":
                attributes[name], same = _copied(value), False
        return before if before is not None and same else cls(attributes, digests)

    def put_into(self, existing: Any) -> None:
        """Put the attributes back that are not as they were."""
        for name, value in self.items():
            if not _equal(getattr(existing, name), value):
                setattr(existing, name, _copied(value))

    def digest_of(self, name: str) -> str:
        if name not in self._digests:
            self._digests[name] = digest_of(self[name])
        return self._digests[name]

    @functools.cached_property
    def digest(self) -> str:
        return digest_of([(name, self.digest_of(name)) for name in sorted(self)])


def _copied(value: Any) -> Any:
    """Copy dictionaries, lists and sets of plain or frozen values, to any depth."""
    copy = _COPIES.get(type(value))
    return value if copy is None else copy(value)


def _equal(value: Any, other: Any) -> bool:
    if isinstance(value, store_attempts):
        return isinstance(other, store_attempts) and vars(value) == vars(other)
    return bool(value == other)


def _dict_copied(value: dict[Any, Any]) -> dict[Any, Any]:
    return {key: each if type(each) not in _COPIES else _copied(each) for key, each in value.items()}


def _attempts_copied(value: Any) -> Any:
    other = type(value)()
    vars(other).update({key: dict(each) for key, each in vars(value).items()})
    return other


store_attempts = type(MemoryNamespace().attempts)
_COPIES: dict[type, Any] = {
    dict: _dict_copied,
    defaultdict: lambda value: defaultdict(value.default_factory, _dict_copied(value)),
    list: list,
    set: set,
    store_attempts: _attempts_copied,
}


def digest_of(value: Any) -> str:
    """Return a digest of plain values, whatever the order of dictionaries and sets."""
    return xxhash.xxh3_128_hexdigest(repr(_plain(value)).encode())


def _plain(value: Any) -> Any:
    """The value as what has the same text each time."""
    kind = type(value)
    if kind not in _PLAIN:
        _PLAIN[kind] = next((make for of, make in _PLAIN_BASES.items() if issubclass(kind, of)), None)
    make = _PLAIN[kind]
    return value if make is None else make(value)


def _plain_content(value: truth.Content) -> str:
    """The digest, once for each object: words share most of what was true."""
    kept = _contents.get(id(value), lambda: (value, digest_of(tuple(value))))
    return str(kept[1])


_contents = answers.Answers()
_PLAIN: dict[type, Any] = {truth.Content: _plain_content}
_PLAIN_BASES: dict[type, Any] = {
    dict: lambda value: sorted((repr(key), _plain(each)) for key, each in value.items() if each or each == 0),
    set: lambda value: sorted(map(repr, value)),
    frozenset: lambda value: sorted(map(repr, value)),
    list: lambda value: [_plain(each) for each in value],
    tuple: lambda value: [_plain(each) for each in value],
    MappingProxyType: lambda value: _plain(dict(value)),
    store_attempts: lambda value: _plain(vars(value)),
}


@contextlib.contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _warnings() -> Iterator[list[str]]:
    shown: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            shown.append(f"warning: {record.getMessage()}")

    logger, handler = logging.getLogger("tidegate"), Handler(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield shown
    finally:
        logger.removeHandler(handler)
