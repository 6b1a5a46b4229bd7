"""The public API as a reader's code, for the type checker; ``tests/repo/test_public_types.py`` runs it.

A wrong use carries the error it must give: with none, mypy calls the comment unused.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

from typing_extensions import assert_type

import tidegate

gate = tidegate.connect("sqlite:///data/store", namespace="flights", options={"timeout_s": 3.0})
assert_type(gate, tidegate.Gate)
assert_type(gate.version(), int)
assert_type(gate.wait_for(version=42, timeout=5.0), int)
assert_type(gate.tables(), list[str])
assert_type(gate.table("aircraft"), tidegate.Table)

for info in gate.history(limit=10):
    assert_type(info, tidegate.VersionInfo)
    assert_type(info.batch, int | None)
    assert_type(info.decided_at, datetime.datetime)
    assert_type(info.changes, dict[str, int])

with tidegate.connect("memory://x", "flights") as same, same.snapshot() as snap:
    assert_type(snap, tidegate.Snapshot)
    assert_type(snap.version, int)
    rows: Iterator[tuple[Any, Any]] = snap.table("airports").scan()
    for key, value in rows:
        print(key, value["departures"])
    print(snap.table("airports").scan().to_arrow().num_rows)
    with snap.table("airports").scan() as scan:
        assert_type(scan, tidegate.Scan)
    found = snap.table("legs").get_many([("EWR", 1545)])
    print(found["EWR", 1545]["dest"])
    print([column.name for column in snap.table("legs").schema().key])

aircraft = gate.table("aircraft").get("N14228")
if aircraft is not None:
    print(aircraft["carrier"])
aircraft["carrier"]  # type: ignore[index]  # the key may be absent

gate.snapshot(version=41)
gate.snapshot(as_of=datetime.datetime.now(datetime.timezone.utc), lease_s=60)
gate.snapshot(version="41")  # type: ignore[arg-type]
gate.snapshot("2026-11-21")  # type: ignore[arg-type]
gate.wait_for("42")  # type: ignore[arg-type]
gate.tabel("aircraft")  # type: ignore[attr-defined]
tidegate.connect("memory://x")  # type: ignore[call-arg]
tidegate.conect("memory://x", "flights")  # type: ignore[attr-defined]
info.version = 3  # type: ignore[misc]

try:
    gate.version()
except tidegate.SnapshotExpiredError as error:
    assert_type(error.exit_code, int)
except (tidegate.TidegateError, tidegate.errors.StoreUnavailableError) as error:
    print(error)
assert_type(tidegate.__version__, str)
print(tidegate.Options(key_groups=8), tidegate.Options(key_groups="8"))  # type: ignore[arg-type]
