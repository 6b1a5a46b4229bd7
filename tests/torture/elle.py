"""Histories of append lists in Elle's form: EDN, one operation per line, for its list-append checker.

    {:index 0, :time 5, :type :invoke, :process 0, :f :txn, :value [[:append "l0" 7]]}
    {:index 1, :time 9, :type :ok, :process 0, :f :txn, :value [[:append "l0" 7]]}

Elle finds dependency cycles between transactions (https://github.com/jepsen-io/elle). A batch is exported as
one transaction of appends, a snapshot of the newest version as one of reads.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidegate.errors import ConfigError
from tidegate.torture.history import events
from tidegate.torture.history.files import Line, canonical, read_history
from tidegate.torture.history.offers import REFUSED, Origin
from tidegate.torture.history.source import Recompute


@dataclasses.dataclass(eq=False)
class Transaction:
    """One batch or one snapshot, as it is exported to Elle."""

    began: int
    operations: list[tuple[str, str, Any]]
    ended: int = 0
    type: str = "info"


def export(folder: Path, namespace: str, table: str, recompute: Recompute | None = None) -> Iterator[str]:
    """Yield the lines of one table of lists, in the order of time.

    A batch that was offered again with the same rows is one transaction. It is :ok when a call returned its
    version, :fail when all its calls proved that it is not decided, and :info when neither is known. It is
    also :info when other rows were offered for the same batch and it is not known whose count. Each
    transaction is a process of its own, because a driver may die in the middle of one. Stores other than the
    primary are left out, and so are snapshots of a requested version, which are old on purpose.

    ConfigError: the table has changes that are no appends, an item is appended twice to one key, or an item
    is neither a whole number nor text.
    """
    batches = _Batches(namespace, table, recompute)
    readers = _Readers(namespace, table)
    for line in read_history(folder):
        batches.take(line)
        readers.take(line)
    transactions = [*batches.transactions(), *(t for t in readers.transactions.values() if t.operations)]
    points = []
    for process, transaction in enumerate(sorted(transactions, key=lambda t: t.began)):
        points.append((transaction.began, 0, process, "invoke", transaction))
        if transaction.type != "info":
            points.append((transaction.ended, 1, process, transaction.type, transaction))
    points.sort(key=lambda point: point[:3])
    for index, (time, _, process, kind, transaction) in enumerate(points):
        value = " ".join(_operation(*operation, kind=kind) for operation in transaction.operations)
        head = f":index {index}, :time {time}, :type :{kind}, :process {process}"
        yield f"{{{head}, :f :txn, :value [{value}]}}\n"


def _operation(function: str, key: str, value: Any, *, kind: str) -> str:
    if function == "append":
        return f"[:append {edn(key)} {edn(value)}]"
    return f"[:r {edn(key)} {edn(value) if kind == 'ok' else 'nil'}]"


def edn(value: Any) -> str:
    r"""Write a value as EDN.

    >>> edn([1, "a\"b"]), edn(None)
    ('[1 "a\\"b"]', 'nil')
    """
    if value is None:
        return "nil"
    if isinstance(value, list):
        return f"[{' '.join(edn(item) for item in value)}]"
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value).replace("\\b", "\\u0008").replace("\\f", "\\u000c")
    raise ConfigError(f"Elle's lists hold whole numbers and texts, not {value!r}")


class _Batches:
    """The batches of a table, and how their calls ended."""

    def __init__(self, namespace: str, table: str, recompute: Recompute | None) -> None:
        self._namespace, self._table, self._recompute = namespace, table, recompute
        self._by_origin: dict[Origin, dict[bytes, Transaction]] = {}
        self._outcomes: dict[tuple[Origin, bytes], list[events.Returned | events.Raised | None]] = {}
        self._calls: dict[tuple[str, int], tuple[Origin, bytes, int]] = {}
        self._appended: dict[tuple[str, bytes], tuple[Origin, bytes]] = {}

    def take(self, line: Line) -> None:
        event = line.event
        if isinstance(event, events.Offered) and event.namespace == self._namespace:
            self._offered(event, line)
        elif isinstance(event, events.Returned | events.Raised):
            call = self._calls.get((line.file, event.call))
            if call is not None:
                self._outcomes[call[:2]][call[2]] = event

    def _offered(self, event: events.Offered, line: Line) -> None:
        changes = self._recompute(event) if event.recipe and self._recompute else event.changes
        origin = Origin(event.lineage, event.batch, event.fingerprint, event.token)
        operations: list[tuple[str, str, Any]] = []
        for change in changes:
            if change.table == self._table:
                if change.rows or change.reduce or change.replace:
                    raise ConfigError(f"{line.where}: table {self._table} has changes that are no appends")
                appends = [(key, item) for key, items in change.append.items() for item in items]
                operations += [("append", key, item) for key, item in appends]
        content = canonical(operations)
        self._by_origin.setdefault(origin, {}).setdefault(content, Transaction(event.at, operations))
        for _, key, item in operations:
            owner = self._appended.setdefault((key, canonical(item)), (origin, content))
            if owner[0] != origin:
                raise ConfigError(f"{line.where}: {item!r} is appended to {key!r} by two batches")
        outcomes = self._outcomes.setdefault((origin, content), [])
        outcomes.append(None)
        self._calls[line.file, event.call] = origin, content, len(outcomes) - 1

    def transactions(self) -> Iterator[Transaction]:
        for origin, contents in self._by_origin.items():
            for content, transaction in contents.items():
                self._end(transaction, self._outcomes[origin, content], only=len(contents) == 1)
                if transaction.operations:
                    yield transaction

    @staticmethod
    def _end(
        transaction: Transaction, outcomes: list[events.Returned | events.Raised | None], *, only: bool
    ) -> None:
        """Set the outcome of a transaction.

        With several contents, only a call that reports ``own`` proves whose rows count.
        """
        returned = [
            outcome.at
            for outcome in outcomes
            if isinstance(outcome, events.Returned) and (only or outcome.own)
        ]
        refused = [
            outcome.at
            for outcome in outcomes
            if isinstance(outcome, events.Raised) and outcome.error in REFUSED
        ]
        if returned:
            transaction.type, transaction.ended = "ok", min(returned)
        elif len(refused) == len(outcomes):
            transaction.type, transaction.ended = "fail", max(refused)


class _Readers:
    """Snapshots of the newest version, and reads outside of snapshots."""

    def __init__(self, namespace: str, table: str) -> None:
        self._namespace, self._table = namespace, table
        self._clients: set[tuple[str, int]] = set()
        self.transactions: dict[tuple[str, int, int], Transaction] = {}

    def take(self, line: Line) -> None:
        event, file = line.event, line.file
        if isinstance(event, events.Connected):
            if event.namespace == self._namespace and not event.store:
                self._clients.add((file, event.client))
        elif isinstance(event, events.SnapshotOpened):
            if (file, event.client) in self._clients and not event.asked:
                self.transactions[file, event.snapshot, 0] = Transaction(event.began, [])
        elif isinstance(event, events.Read | events.Scanned) and event.table == self._table:
            self._read(event, line)

    def _read(self, event: events.Read | events.Scanned, line: Line) -> None:
        if event.snapshot:
            transaction = self.transactions.get((line.file, event.snapshot, 0))
        elif (line.file, event.client) in self._clients:
            place = line.file, 0, line.number
            transaction = self.transactions[place] = Transaction(event.began, [])
        else:
            transaction = None
        if transaction is None:
            return
        transaction.type, transaction.ended = "ok", event.at
        if isinstance(event, events.Read):
            transaction.operations += [("r", key, event.found[key]) for key in sorted(event.found)]
            transaction.operations += [("r", key, None) for key in event.absent]
        else:
            transaction.operations += [
                ("r", key, value) for key, value in sorted((event.content or {}).items())
            ]
