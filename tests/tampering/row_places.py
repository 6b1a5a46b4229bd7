"""The stores of ``rows.py``: each keeps one namespace whose rows and fields can be changed and put back."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
import uuid
from pathlib import Path
from typing import Any

from tampering.rows import KEY_GROUPS, NAMESPACE, NEW_TABLE, Place, Row
from tampering.stores import changed
from tidegate.committers.steps.retire import retire_up_to
from tidegate.options import Options
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import Identity
from tidegate.sinks.sqlite.disk.tables import TABLE
from tidegate.sinks.sqlite.rows import sql_name
from tidegate.testing.example import BATCHES, Example

TIMEOUT_S = 5.0


def written(wal: str, url: str) -> tuple[int, int]:
    """Write five versions, of which three can be read; return the oldest and the newest of these."""
    options = Options(key_groups=KEY_GROUPS, keep_versions=3, allow_unsafe=True)
    example = Example(wal, url, NAMESPACE, options=options)
    for rows in BATCHES:
        example.write(rows)
    example.schemas[NEW_TABLE] = example.schemas["airports"]
    example.write({NEW_TABLE: {"SFO": {"departures": 1, "delay": 0.5}}, "airports": {"EWR": None}})
    example.write({"airports": {"EWR": {"departures": 2, "delay": 0.5}}, "legs": {}}, frozenset(["legs"]))
    driver = example.driver
    retire_up_to(driver.log, driver.store, driver.folded, options, lambda: False)
    pointer = driver.store.pointer()
    example.close()
    return pointer.horizon, pointer.visible


def place_of(folder: Path, url: str | None) -> Any:
    """Return the place of a URL; None: SQLite files."""
    if url is None:
        return SqlitePlace(folder)
    return RedisPlace(folder, url) if url.startswith("redis") else CassandraPlace(folder, url)


class SqlitePlace(Place):
    """Copies of one folder of files."""

    def __init__(self, folder: Path) -> None:
        self.kept, self.copy = folder / "kept", folder / "copy"
        self.wal, self.url, self.options = f"file://{folder}/wal", f"sqlite://{self.copy}", {}
        self.horizon, self.visible = written(self.wal, f"sqlite://{self.kept}")
        for file in self.kept.rglob("*.sqlite"):
            with contextlib.closing(sqlite3.connect(file)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for beside in (*self.kept.rglob("*-wal"), *self.kept.rglob("*-shm")):
            beside.unlink()

    def put_back(self) -> None:
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.kept, self.copy)

    def _connect(self, name: str) -> Any:
        path = self.copy / NAMESPACE / f"{name}.sqlite"
        return contextlib.closing(sqlite3.connect(path, isolation_level=None))

    def rows(self) -> list[Row]:
        rows = []
        for group in range(KEY_GROUPS):
            with self._connect(f"shard-{group:02d}") as connection:
                for table in ("aircraft", "airports", "legs", "notes", NEW_TABLE):
                    with contextlib.suppress(sqlite3.OperationalError):  # no row of it is in this file
                        of_table = connection.execute(f"SELECT * FROM {sql_name(table)}").fetchall()
                        rows += [Row(table, *row) for row in of_table]
        return rows

    def put(self, row: Row) -> None:
        with self._connect(f"shard-{row.group:02d}") as connection:
            connection.execute(TABLE.format(name=sql_name(row.table)))
            connection.execute(f"INSERT OR REPLACE INTO {sql_name(row.table)} VALUES (?, ?, ?, ?)", row[1:])

    def remove(self, row: Row) -> None:
        with self._connect(f"shard-{row.group:02d}") as connection:
            same = "kg = ? AND key = ? AND version = ?"
            connection.execute(f"DELETE FROM {sql_name(row.table)} WHERE {same}", row[1:4])

    def metadata(self, chance: random.Random) -> str:
        name, table = chance.choice(
            (*(("meta", of_meta) for of_meta in ("pointer", "catalog", "schemas")), ("shard-00", "floors"))
        )
        with self._connect(name) as connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            columns = [row[1:6:4] for row in connection.execute(f"PRAGMA table_info({table})")]
            column, keys = chance.choice(columns)[0], [column for column, is_key in columns if is_key]
            asked = f"SELECT {column}, {', '.join(keys)} FROM {table}"
            old, *same = chance.choice(connection.execute(asked).fetchall())
            new = changed(chance, old)
            where = " AND ".join(f"{key} IS ?" for key in keys)
            with contextlib.suppress(sqlite3.Error, UnicodeEncodeError, OverflowError):
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (new, *same))
        return f"{name}, {table}.{column}: {old!r:.80} -> {new!r:.80}"

    def close(self) -> None:
        pass


class RedisPlace(Place):
    """A namespace on a server, all of whose keys are put back."""

    def __init__(self, folder: Path, url: str) -> None:
        from redis import Redis

        self.url, self.wal, self.options = url, f"file://{folder}/wal", {"timeout_s": TIMEOUT_S}
        self.horizon, self.visible = written(self.wal, url)
        self.client: Any = Redis.from_url(url)
        self.pattern = f"tg:{{{NAMESPACE}*"
        self.kept = {key: self.client.dump(key) for key in sorted(self.client.scan_iter(self.pattern))}
        client: Any = self.client
        self.uuid = client.hget(f"tg:{{{NAMESPACE}}}:meta", "uuid").decode()

    def put_back(self) -> None:
        with self.client.pipeline(transaction=True) as pipe:
            pipe.unlink(*{*self.kept, *self.client.scan_iter(self.pattern)})
            for key, content in self.kept.items():
                pipe.restore(key, 0, content)
            pipe.execute()

    def _layers(self, table: str, group: int) -> list[int]:
        listed = self.client.hget(f"tg:{{{NAMESPACE}/{group}}}:h", f"l:{table}") or b""
        return [int(version) for version in listed.split(b",") if version]

    def _key(self, row: Row) -> str:
        """Return the hash of a version: the base's where the version is merged."""
        kind = f"d:{row.version}:{self.uuid}"
        return f"tg:{{{NAMESPACE}/{row.group}}}:{row.table}:{kind if row.version > self.horizon else 'b'}"

    def rows(self) -> list[Row]:
        rows = []
        for key in self.kept:
            tag, _, rest = key.decode().partition("}:")
            table, _, kind = rest.partition(":")
            if "/" in tag and kind:
                version = int(kind.split(":")[1]) if kind.startswith("d:") else self.horizon
                group = int(tag.rpartition("/")[2])
                rows += [Row(table, group, name, version, value) for name, value in self.client.hgetall(key).items()]  # fmt: skip  # noqa: E501
        return rows

    def put(self, row: Row) -> None:
        header = f"tg:{{{NAMESPACE}/{row.group}}}:h"
        self.client.hset(self._key(row), row.key, row.value)
        if row.version <= self.horizon:
            self.client.hsetnx(header, f"b:{row.table}", str(self.horizon))
        elif row.version not in (layers := self._layers(row.table, row.group)):
            listed = sorted((*layers, row.version), reverse=True)
            self.client.hset(header, f"l:{row.table}", ",".join(map(str, listed)))

    def remove(self, row: Row) -> None:
        self.client.hdel(self._key(row), row.key)

    def metadata(self, chance: random.Random) -> str:
        keys = [key for key in self.kept if key.endswith((b":h", b":meta", b":catalog", b":schemas"))]
        key = chance.choice(keys)
        fields = self.client.hgetall(key)
        field = chance.choice(sorted(fields))
        new = changed(chance, fields[field])
        new = new if isinstance(new, bytes) else str("" if new is None else new).encode(errors="replace")
        self.client.hset(key, field, new)
        return f"{key!r}, field {field!r}: {fields[field]!r:.80} -> {new!r:.80}"

    def close(self) -> None:
        self.client.unlink(*self.client.scan_iter(self.pattern), *self.kept)
        self.client.close()


class CassandraPlace(Place):
    """A namespace in a keyspace. Every write has a later time than all before it, so the last one counts."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url, self.wal, self.options = url, f"file://{folder}/wal", {}
        creating = {"create": True, "replication": {"datacenter1": 1}}
        with contextlib.closing(open_store(url, "first", creating)) as first:
            first.create(Identity(uuid.uuid4().hex, "first", 1))  # it creates the keyspace and its tables
        self.horizon, self.visible = written(self.wal, url)
        opened: Any = open_store(url, NAMESPACE)
        self._store = opened
        self.space, self.driver = opened._space.made.space, opened._space.session.driver
        self.keyspace = opened._space.settings.keyspace
        self.kept = self.rows()
        self.changed: list[Row] = []
        self.undo: tuple[str, Any] | None = None

    def _run(self, text: str, *values: Any) -> Any:
        return list(self.driver.execute(text, values))

    def put_back(self) -> None:
        for row in self.changed:
            self._remove(row)
        kept = {row[:4]: row for row in self.kept}
        for row in self.changed:
            if row[:4] in kept:
                self._put(kept[row[:4]])
        self.changed = []
        if self.undo is not None:
            text, values = self.undo
            self._run(text, *values)
            self.undo = None

    def rows(self) -> list[Row]:
        rows, of_group = [], "space = %s AND tbl = %s AND kg = %s"
        text = f"SELECT key, version, value FROM {self.keyspace}.tidegate_rows WHERE {of_group}"
        for table in self._store._rows.tables():
            for group in range(KEY_GROUPS):
                rows += [Row(table, group, *row) for row in self._run(text, self.space, table, group)]
        return rows

    def put(self, row: Row) -> None:
        self.changed.append(row)
        self._put(row)

    def remove(self, row: Row) -> None:
        self.changed.append(row)
        self._remove(row)

    def _put(self, row: Row) -> None:
        names = "(space, tbl, kg, key, version, value)"
        text = f"INSERT INTO {self.keyspace}.tidegate_rows {names} VALUES (%s, %s, %s, %s, %s, %s)"
        self._run(text, self.space, *row)

    def _remove(self, row: Row) -> None:
        where = "space = %s AND tbl = %s AND kg = %s AND key = %s AND version = %s"
        self._run(f"DELETE FROM {self.keyspace}.tidegate_rows WHERE {where}", self.space, *row[:4])

    def metadata(self, chance: random.Random) -> str:
        """Change the pointer's or the catalog's field, of its type: no other is stored."""
        column = chance.choice(("visible", "horizon", "digest", "entry"))
        pointers = f"{self.keyspace}.tidegate_pointers"
        version = chance.randrange(self.horizon, self.visible + 1)
        is_static = column != "entry"
        where, values = ("space = %s", ()) if is_static else ("space = %s AND version = %s", (version,))
        select = f"SELECT {column} FROM {pointers} WHERE {where} LIMIT 1"
        ((old,),) = self._run(select, self.space, *values)
        if column in ("visible", "horizon"):
            new: Any = old + chance.choice((-2, -1, 1, 2, 10**6))
        else:
            new = chance.choice((old[1:], old.replace("1", "2"), "", "{}", old + "x"))
        update = f"UPDATE {pointers} SET {column} = %s WHERE {where}"
        self._run(update, new, self.space, *values)
        self.undo = update, (old, self.space, *values)
        return f"{column} of version {version}: {old!r:.80} -> {new!r:.80}"

    def close(self) -> None:
        self._store.drop()
        self._store.close()
