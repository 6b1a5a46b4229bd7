"""The reference reader: the protocol of ``conformance/README.md`` over ``tidegate.connect``.

It is a program: ``python -m tidegate.testing.conformance.reader``.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TextIO

import msgspec

import tidegate
from tidegate.base.decoders import json_decoder
from tidegate.base.steps import Steps, run
from tidegate.errors import BadRecordError, ConfigError, TidegateError, VersionRegressedError
from tidegate.keys.groups import key_group
from tidegate.reader.table import TableReader, TablesReader, hashable
from tidegate.testing.conformance.canonical import canonical_key, canonical_value, key_of
from tidegate.testing.conformance.vectors.keys import encoded
from tidegate.testing.conformance.vectors.values import decoded

LEASE_S = 60.0


class UnsupportedError(Exception):
    """A request that this reader does not know."""


class ReferenceReader:
    """One reader under test: its connection, and its snapshots by name."""

    def __init__(self) -> None:
        self._gate: Any = None
        self._snapshots: dict[str, Any] = {}
        self._names = itertools.count(1)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the reply to a request."""
        arguments = {name: value for name, value in request.items() if name not in ("id", "do")}
        try:
            return {"id": request["id"], "ok": self._do(str(request["do"]), arguments)}
        except UnsupportedError:
            return {"id": request["id"], "unsupported": True}
        except BadRecordError as error:  # a key that is not of the table's type
            return {"id": request["id"], "error": ConfigError.__name__, "message": str(error)}
        except TidegateError as error:
            return {"id": request["id"], "error": type(error).__name__, "message": str(error)}
        except (LookupError, TypeError, ValueError, AttributeError, msgspec.MsgspecError) as error:
            text = f"a request that does not fit the protocol: {error!r}"
            return {"id": request["id"], "error": ConfigError.__name__, "message": text}

    def _do(self, name: str, arguments: dict[str, Any]) -> Any:
        calls: dict[str, Callable[..., Any]] = {
            "connect": self.connect,
            "version": self.version,
            "tables": self.tables,
            "get": self.get,
            "get_many": self.get_many,
            "repeat": self.repeat,
            "scan": self.scan,
            "snapshot": self.snapshot,
            "release": self.release,
            "wait_for": self.wait_for,
            "encode_key": encode_key,
            "decode_value": decode_value,
            "close": self.close,
        }
        if name not in calls:
            raise UnsupportedError
        return calls[name](**arguments)

    @property
    def gate(self) -> Any:
        """The connection. Raises: ConfigError: there is none."""
        if self._gate is None:
            raise ConfigError("there is no connection: `connect` makes one")
        return self._gate

    def connect(self, url: str, namespace: str, options: dict[str, Any] | None = None) -> dict[str, str]:
        """Connect to a namespace, instead of the one before."""
        self.close()
        gate = self._gate = self.done(self.connecting(url, namespace, options))
        return {"uuid": gate.uuid or gate._gate_now().uuid, "namespace": gate.namespace}  # noqa: SLF001 - an alias's

    connecting: Callable[..., Any] = staticmethod(tidegate.connect)
    """Returns a gate, or a coroutine that does."""

    def done(self, result: Any) -> Any:
        """Return the result of a call of the reader."""
        return result

    def steps(self, steps: Steps[Any]) -> Any:
        """Return the result of steps."""
        return run(steps)

    def version(self) -> int:
        """Read the visible version."""
        return int(self.done(self.gate.version()))

    def tables(self, snapshot: str | None = None) -> list[str]:
        """List the tables."""
        source = self._source(snapshot)
        listed: list[str] = self.done(source.tables()) if snapshot is None else source.tables()
        return listed

    def get(self, table: str, key: list[Any], snapshot: str | None = None) -> dict[str, Any]:
        """Read one row, with its version."""
        version, (value,) = self.steps(self._source(snapshot).read(table, rows_of, [key]))
        return {"version": version, "value": value}

    def get_many(self, keys: dict[str, list[Any]], snapshot: str | None = None) -> dict[str, Any]:
        """Read rows of several tables at one version."""
        if snapshot is None:
            version, rows = self.steps(self.gate.read(tuple(keys), rows_of_tables, keys))
            return {"version": version, "rows": rows}
        pinned = self._source(snapshot)
        rows = {table: self.steps(pinned.read(table, rows_of, chosen))[1] for table, chosen in keys.items()}
        return {"version": pinned.version, "rows": rows}

    def repeat(self, keys: dict[str, list[Any]], times: int, threads: int = 1) -> dict[str, Any]:
        """Read the same keys again and again, from several threads; return the answers that differ."""
        left, lock = itertools.count(), threading.Lock()
        answers: list[dict[str, Any]] = []
        refused: Counter[str] = Counter()

        def note(answer: dict[str, Any]) -> None:
            for each in reversed(answers):
                if each["version"] == answer["version"] and each["rows"] == answer["rows"]:
                    each["count"] += 1
                    return
            answers.append(answer | {"count": 1})

        def work() -> None:
            while next(left) < times and not refused[VersionRegressedError.__name__]:
                try:
                    answer = self.get_many(keys)
                except TidegateError as error:
                    with lock:
                        refused[type(error).__name__] += 1
                else:
                    with lock:
                        note(answer)

        with ThreadPoolExecutor(threads) as pool:
            for each in [pool.submit(work) for _ in range(threads)]:
                each.result()
        return {"answers": answers, "refused": refused}

    def scan(self, table: str, snapshot: str | None = None) -> dict[str, Any]:
        """Read all rows of a table, with their version."""
        with self._source(snapshot).table(table).scan() as scan:
            view = scan._start().view  # noqa: SLF001 - it has the version
            schema = view.values.schema
            rows = [
                [canonical_key(schema.key_types, key), canonical_value(schema, value)] for key, value in scan
            ]
            return {"version": view.at.version, "rows": rows}

    def snapshot(self, version: int | None = None, lease_s: float = LEASE_S) -> dict[str, Any]:
        """Take a snapshot, under a name."""
        snapshot = self.done(self.gate.snapshot(version, lease_s=lease_s))
        name = f"s{next(self._names)}"
        self._snapshots[name] = snapshot
        return {"snapshot": name, "version": snapshot.version}

    def release(self, snapshot: str) -> bool:
        """Release a snapshot."""
        self.done(self._source(snapshot).close())
        del self._snapshots[snapshot]
        return True

    def wait_for(self, version: int, timeout_s: float) -> int:
        """Wait for a version."""
        return int(self.done(self.gate.wait_for(version, timeout_s)))

    def close(self) -> bool:
        """Release the connection and its snapshots."""
        for snapshot in self._snapshots.values():
            self.done(snapshot.close())
        self._snapshots.clear()
        if self._gate is not None:
            self.done(self._gate.close())
        self._gate = None
        return True

    def _source(self, snapshot: str | None) -> Any:
        if snapshot is None:
            return self.gate
        if snapshot not in self._snapshots:
            raise ConfigError(f"there is no snapshot {snapshot!r}")
        return self._snapshots[snapshot]


def rows_of(rows: TableReader, keys: list[Any]) -> Steps[tuple[int, list[Any]]]:
    """Read rows by canonical keys: the version, and the canonical values in the keys' order."""
    schema = rows.view.values.schema
    parsed = [key_of(rows.view.name, schema.key, key) for key in keys]
    if len(parsed) == 1:
        value = yield from rows.get(parsed[0])
        return rows.view.at.version, [canonical_value(schema, value)]
    values = yield from rows.get_many(parsed)
    return rows.view.at.version, [canonical_value(schema, values.get(hashable(key))) for key in parsed]


def rows_of_tables(
    tables: TablesReader, keys: dict[str, list[Any]]
) -> Steps[tuple[int, dict[str, list[Any]]]]:
    """Read rows of several tables by canonical keys, as ``rows_of``."""
    views = tables._views  # noqa: SLF001 - they have the version
    parsed = {
        view.name: [key_of(view.name, view.values.schema.key, key) for key in keys[view.name]]
        for view in views
    }
    values = yield from tables.get_many(parsed)
    return views[0].at.version, {
        view.name: [
            canonical_value(view.values.schema, values[view.name].get(hashable(key)))
            for key in parsed[view.name]
        ]
        for view in views
    }


def encode_key(types: list[str], values: list[Any], key_groups: int, stride: int) -> dict[str, Any]:
    """Encode a key of canonical values."""
    content = encoded(types, values)
    return {"bytes": content.hex(), "key_group": key_group(content, key_groups, stride)}


def decode_value(schema: dict[str, Any], stored: str, decided_at_us: int) -> Any:
    """Return the canonical value of a stored one; None: absent."""
    return decoded(schema, bytes.fromhex(stored), decided_at_us)


def requests_in(lines: TextIO) -> Iterator[dict[str, Any]]:
    """Yield the requests of the input, to its end."""
    decode = json_decoder(dict[str, Any]).decode
    for line in lines:
        if line.strip():
            yield decode(line)


def main(reader: ReferenceReader | None = None) -> None:
    """Answer the requests of standard input until ``close``, or its end."""
    reader = reader or ReferenceReader()
    for request in requests_in(sys.stdin):
        reply = msgspec.json.encode(reader.answer(request))
        sys.stdout.buffer.write(reply + b"\n")
        sys.stdout.buffer.flush()
        if request["do"] == "close":
            return
    reader.close()


if __name__ == "__main__":
    main()
