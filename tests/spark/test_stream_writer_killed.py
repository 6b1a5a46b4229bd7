"""SIGKILL to a query that writes by format, in each of its steps, beside a reader that counts again.

I1 Atomic, I2 Exactly once, I4 Roll forward, I8 Repeatable reads; T2, T6, T10, T12.
"""

from __future__ import annotations

import contextlib
import json
import signal

import pytest
from format_driver import expected
from log_places import command

import tidegate
from support.spark_processes import DriverProcesses
from support.whole_snapshots import whole_snapshots
from tidegate.wal.fold import View, fold_all
from tidegate.wal.open_log import open_log

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.only_log("file"), pytest.mark.timeout(3000)]

KILLS = [
    (batch, *kill)
    for batch, kill in enumerate(
        [
            ("worker", "stage.before_ack"),
            ("driver", "stage.before_ack"),
            ("driver", "manifest.after_write"),
            ("worker", "decide.after_append"),
            ("driver", "decide.after_append"),
            ("driver", "apply.after_chunk"),
            ("worker", "publish.before"),
            ("driver", "publish.after"),
            ("worker", "returned"),
            ("driver", "returned"),
        ],
        1,
    )
]
"""One in each of the first batches."""


def as_counted(snapshot):
    """Whether the rows are those that are counted for this version."""
    return dict(snapshot.table("t").scan()) == expected(snapshot.version)


def test_whatever_is_killed_in_a_step_each_batch_is_there_once_and_no_snapshot_is_torn_i1_i2_i4_i8(tmp_path):
    last = KILLS[-1][0] + 1
    words = str(last), json.dumps(KILLS)
    ends = []
    snapshots = whole_snapshots(f"sqlite://{tmp_path}/store", "n", as_counted)
    with snapshots as versions, contextlib.closing(DriverProcesses()) as drivers:
        while not ends or ends[-1][0] == -signal.SIGKILL:
            ends.append(drivers.run("format_driver.py", tmp_path, *words))
    assert ends[-1][0] == 0, ends[-1][1]
    assert len(ends) == 1 + len([who for _, who, _ in KILLS if who == "driver"])
    assert sorted(path.name for path in tmp_path.glob("killed-*")) == sorted(f"killed-{b}" for b, *_ in KILLS)
    assert len(versions) > 100
    assert len(set(versions)) > len(KILLS) / 2
    with contextlib.closing(open_log(f"file://{tmp_path}/wal", "n", {})) as log:
        facts = fold_all(View(), log.decisions()).state.recent
    assert [fact.origin.batch_id for fact in facts] == list(range(len(facts)))
    assert len(facts) > last
    with tidegate.connect(f"sqlite://{tmp_path}/store", "n") as gate, gate.snapshot() as snap:
        assert snap.version == len(facts)
        assert dict(snap.table("t").scan()) == expected(snap.version)
    where = ["--store", f"sqlite://{tmp_path}/store", "--namespace", "n", "--wal", f"file://{tmp_path}/wal"]
    assert json.loads(command("verify", "--json", *where))["findings"] == []
