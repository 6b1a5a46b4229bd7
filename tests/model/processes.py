"""Production's own processes, each as a function of the replies to its calls, for ``whole.py``.

A program (an open, a commit, a follower, a retirement, a reader) runs in a greenlet, and stops at each
call of the log or a store. The replies to its calls decide its next call. So a process, in a state of the
exploration, is the history of its replies. ``Place`` is production's log and stores in memory, set to a state
and frozen again around each call. docs/reliability.md has the counts.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import greenlet
import msgspec

from support.faulty import Call, FaultyLog, FaultyStore
from tidegate.base.clock import Clock
from tidegate.errors import StoreUnavailableError, TidegateError, WalGapError
from tidegate.options.endpoints import Endpoints, StoreRef
from tidegate.sinks.memory.store import MemoryStore
from tidegate.sinks.memory.store import forget as forget_store
from tidegate.sinks.records import Pointer, ReadAt
from tidegate.testing.arrow_barrier import Rows
from tidegate.wal.fold import Entry, View, fold_all
from tidegate.wal.log import Blob, Trimmed
from tidegate.wal.memory_log import MemoryLog
from tidegate.wal.memory_log import forget as forget_log
from tidegate.wal.record import DecidedVersion, Open, RestoreOrigin, Summary, decode_record
from tidegate.wal.staging.acks import Ack

NOW_US = 1_700_000_000_000_000
TICK_S = 40.0
"""One step of the world's time: a lease of a reader lasts for one of them, and ends within the second."""
AT_ONCE = frozenset({"log.stage", "log.checks", "heartbeat", "end_heartbeat"})
"""Calls that no other process can observe: blobs are named by their content."""
NAMES = ("first", "second")
Content = dict[str, dict[bytes, bytes]]


class Request(NamedTuple):
    """A call of a process to the log (-1), to a store (0, 1), or of a reader to the time (-2)."""

    target: int
    call: Call
    effect: Callable[[], Any]


class Raised(NamedTuple):
    """A reply that is an error."""

    kind: type[BaseException]
    text: str


class Change(NamedTuple):
    """The rows of an attempt by table, None deletes; the tables that it empties first, and drops."""

    rows: Rows
    starts: frozenset[str] = frozenset()
    drops: frozenset[str] = frozenset()


class ModelLog(MemoryLog):
    """A log that names blobs by their content, so that its state is only which of them are ``dropped``.

    ``staged_us``: the time of the attempt that stages now, the earliest that a log's own clock may show.
    """

    dropped: frozenset[str] = frozenset()
    staged_us = 0

    def stage(self, segment: str, blobs: Iterable[bytes]) -> list[str]:
        staged = [bytes(blob) for blob in blobs]
        name = hashlib.blake2b(b"".join(staged), digest_size=16).hexdigest()
        self._content.segments.setdefault(name, staged)
        self._content.staged_at_us.setdefault(name, self.staged_us)
        return [f"{name}:{index}" for index in range(len(staged))]

    def read(self, addresses: Sequence[str]) -> Iterator[Blob]:
        for address in addresses:
            if address.partition(":")[0] in self.dropped:
                raise WalGapError(f"nothing is staged at {address}")
        return super().read(addresses)

    def trim_blobs(self, needed: Collection[str], before_us: int) -> Trimmed:
        old = {name for name, at_us in self._content.staged_at_us.items() if at_us < before_us}
        self.dropped |= old - {address.partition(":")[0] for address in needed}
        return Trimmed(0)


class LogState(NamedTuple):
    """Every record that was not lost, the first one that was not cut, and the blobs that were dropped."""

    records: tuple[bytes, ...] = ()
    first: int = 0
    dropped: frozenset[str] = frozenset()


class Place:
    """The log and the stores of all worlds, set to one of them at a time; and the truth of each history.

    ``contents``: the live rows at each digest, by an account of its own. ``trims``: blobs may be dropped, so
    each read of them is a call.
    """

    def __init__(self, name: str, stores: int, *, trims: bool = False) -> None:
        self.trims = trims
        forget_log(name)
        self.time = 0
        self.log = ModelLog(name, "n", clock=StoreClock(self))
        self.log.create()
        self.stores = []
        for index in range(stores):
            forget_store(f"{name}-{index}")
            self.stores.append(MemoryStore(f"{name}-{index}", "n", StoreClock(self)))
        self.acks: dict[str, Sequence[Ack]] = {}
        self.changes: dict[str, Change] = {}
        self.contents: dict[str, Content] = {"": {}}
        self.parents: dict[str, str] = {}
        self._views: dict[tuple[bytes, ...], View] = {(): View()}
        self._ids: dict[bytes, int] = {}
        self._frozen: list[bytes] = []
        self.pointers: list[Pointer] = []
        """The pointer of each frozen store."""

    # -- states ----------------------------------------------------------------------------------------

    def set(self, log: LogState, stores: Sequence[int], time: int) -> None:
        """Set the log, the first of the stores, and the time."""
        content, self.time = self.log._content, time
        content.records, content.first = list(log.records[log.first :]), log.first
        self.log.dropped, self._whole = log.dropped, log.records
        for store, state in zip(self.stores, stores, strict=False):
            vars(store._found).update(pickle.loads(self._frozen[state]))

    def freeze_log(self) -> LogState:
        """Return the log's state, with the records that were cut since it was set."""
        content = self.log._content
        cut = self._whole[: content.first]
        return LogState((*cut, *content.records), content.first, self.log.dropped)

    def freeze(self, index: int) -> int:
        """Return the number of a store's state, the same for the same contents."""
        space = self.stores[index]._found
        content = {name: value for name, value in vars(space).items() if name != "lock"}
        content["rows"] = defaultdict(dict, {at: rows for at, rows in space.rows.items() if rows})
        key = _canonical.encode(_plain({**content, "schemas": sorted(space.schemas)}))
        if key not in self._ids:
            self._ids[key] = len(self._frozen)
            self._frozen.append(pickle.dumps(content))
            self.pointers.append(space.pointer)
        return self._ids[key]

    # -- the truth -------------------------------------------------------------------------------------

    def view(self, records: tuple[bytes, ...]) -> View:
        """Fold with production's fold; account for each version that is decided."""
        view = self._views.get(records)
        if view is None:
            before, at = self.view(records[:-1]), len(records) - 1
            view = fold_all(before, [Entry(at, at + 1, records[-1])])
            self._views[records] = view
            self._landed(before, view, records, at)
        return view

    def _landed(self, before: View, view: View, records: tuple[bytes, ...], at: int) -> None:
        assert view.state is not None
        known = before.state.recent if before.state else ()
        if len(view.state.recent) > len(known):
            self._account(known, view.state.recent[-1])
        record, valid = decode_record(records[at], ""), view.void == before.void
        if valid and isinstance(record, Open) and known and before.state:
            same = before.state.lineage in (None, view.state.lineage)
            assert same, f"I6: an Open takes the namespace from {before.state.lineage}, which was not adopted"
        if valid and isinstance(record, Summary):
            cut = fold_all(View(), [Entry(at, at + 1, records[at])]).state
            assert cut == view.state, f"cut: a log that begins at position {at} folds to another state"

    def _account(self, known: tuple[DecidedVersion, ...], decided: DecidedVersion) -> None:
        assert decided.version == len(known) + 1, f"I7: v{decided.version} leaves a hole or a double"
        parent = known[-1].digest if known else ""
        if isinstance(decided.origin, RestoreOrigin):
            content = self.contents[known[decided.origin.version - 1].digest]
        else:
            content = changed(self.contents[parent], self.changes[decided.manifest_address])
        batches = content.get("t", {}).get(b"all", b"").split()
        assert len(set(batches)) == len(batches), f"I2: v{decided.version} counts batches {batches}"
        self.contents[decided.digest], self.parents[decided.digest] = content, parent


def changed(content: Content, change: Change) -> Content:
    """Return the rows after a change."""
    tables = {name: dict(rows) for name, rows in content.items() if name not in change.drops}
    for name, rows in change.rows.items():
        before = {} if name in change.starts else tables.get(name, {})
        merged = {**before, **rows}
        tables[name] = {key: value for key, value in merged.items() if value is not None}
    return tables


_canonical = msgspec.msgpack.Encoder(order="deterministic")


def _plain(value: object) -> object:
    """Return a value in a form that is the same for equal contents."""
    match value:
        case dict():
            return sorted(([_plain(key), _plain(of)] for key, of in value.items()), key=repr)
        case set() | frozenset():
            return sorted(map(_plain, value), key=repr)
        case tuple() | list():
            return [_plain(each) for each in value]
        case msgspec.Struct():
            return [_plain(getattr(value, name)) for name in value.__struct_fields__]
        case None | bool() | int() | float() | str() | bytes():
            return value
        case msgspec.UNSET:
            return "unset"
        case _:
            return _plain(vars(value))


class StoreClock(Clock):
    """The clock of log and stores: the world's time."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def now_us(self) -> int:
        return NOW_US + int(self._place.time * TICK_S * 1e6)


class ProcessClock(Clock):
    """The clock of a process: any wait passes every deadline, and ids are numbered.

    ``observes``: its monotonic clock is the world's time, and each look at it is a call.
    """

    def __init__(self, process: Process, *, observes: bool = False) -> None:
        self._process, self._observes = process, observes
        self._ids, self._slept = 0, 0.0

    def now_us(self) -> int:
        return NOW_US

    def monotonic(self) -> float:
        if not self._observes:
            return self._slept
        call = Call("time", writes=False, refused=TidegateError, unknown=TidegateError)
        place = self._process.place
        return float(self._process.call(-2, call, lambda: place.time * TICK_S))

    def sleep(self, seconds: float) -> None:
        self._slept += 600.0

    def new_id(self) -> str:
        self._ids += 1
        return f"{self._process.name}{self._ids}"


class Process:
    """A process of the model. ``direct``: each of its calls is done at once.

    ``notes``: what it claims about the world at this moment, to be checked.
    """

    def __init__(self, name: str, place: Place, *, direct: bool = False) -> None:
        self.name, self.place, self._direct = name, place, direct
        self.notes: list[tuple[str, Any]] = []
        self.clock = ProcessClock(self)
        self.log = FaultyLog(place.log, _Port(self, -1))
        self.stores = [_Store(store, _Port(self, at)) for at, store in enumerate(place.stores)]

    def endpoints(self, stores: int = 1) -> Endpoints:
        also = tuple(StoreRef(name, f"memory://{name}") for name in NAMES[1:stores])
        return Endpoints("n", "memory://log", "memory://first", store_name=NAMES[0], also=also)

    def call(self, target: int, call: Call, effect: Callable[[], Any]) -> Any:
        unseen = call.name in AT_ONCE or (call.name == "log.read" and not self.place.trims)
        if self._direct or unseen or (call.name == "identity" and target == 0):
            return effect()
        hub = greenlet.getcurrent().parent
        assert hub is not None
        reply = hub.switch(Request(target, call, effect))
        if isinstance(reply, Raised):
            raise reply.kind(reply.text)
        return list(reply) if isinstance(reply, list) else reply


class _Store(FaultyStore):
    """A scan is one call: a process continues in many worlds, and an iterator in one."""

    def scan_stored(self, at: ReadAt, group: int) -> Iterator[Any]:
        call = Call("scan", writes=False, refused=StoreUnavailableError, unknown=StoreUnavailableError)
        yield from self._port.call(call, lambda: list(self._inner.scan_stored(at, group)))


class _Port:
    def __init__(self, process: Process, target: int) -> None:
        self.call = partial(process.call, target)


Program = Callable[[Process], object]


class Standing(NamedTuple):
    """A process after a history: its next call, None after its end; its error; its notes."""

    asked: Request | None
    error: type[TidegateError] | None
    notes: tuple[tuple[str, Any], ...]


class Run:
    """A process that waits for the reply to its call."""

    def __init__(self, program: Program, name: str, place: Place) -> None:
        self._process = Process(name, place)
        self._greenlet = greenlet.greenlet(lambda: program(self._process))
        self.standing = self._go()

    def reply(self, reply: Any) -> None:
        """Let it go on up to its next call, or its end."""
        self.standing = self._go(reply)

    def _go(self, *reply: Any) -> Standing:
        asked, error = None, None
        try:
            asked = self._greenlet.switch(*reply)
        except TidegateError as raised:
            error = type(raised)
        asked = None if self._greenlet.dead else asked
        return Standing(asked, error, tuple(self._process.notes))
