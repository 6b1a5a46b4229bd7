"""Workers and executors killed while they stage to Kafka and apply from it (I1, I2, I3, I5; T2, T12).

Real processes, real signals. What the dead had staged are orphans: no reader sees them, nothing is
decided twice, and trimming removes them. Any executor applies any change-log, it is in the topic.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter

import pytest
from log_places import command

import tidegate
from tidegate.committers.apply.apply import read_manifest
from tidegate.committers.steps.retire import retire_up_to
from tidegate.committers.steps.trim import Trimmer
from tidegate.options import Options
from tidegate.sinks.open_store import open_store
from tidegate.wal.fold import View, fold_all
from tidegate.wal.kafka.address import parse_address
from tidegate.wal.record import Decided, decode_record

pytestmark = [pytest.mark.spark, pytest.mark.only_log("kafka"), pytest.mark.timeout(400)]

BATCHES = [
    [{"k": f"k{n}", "n": n} for n in range(300)],
    [{"k": f"k{n}", "n": 10 * n - 100} for n in range(200)],  # the first ten keys are deleted
    [{"k": f"k{n}", "n": 7} for n in range(0, 400, 3)],
    [{"k": f"k{n}", "n": n - 5} for n in range(250)],
    [{"k": f"k{n}", "n": 500 - n} for n in range(200)],
    [{"k": f"k{n}", "n": 3 * n} for n in range(0, 500, 2)],
    [{"k": f"k{n}", "n": 9 - n} for n in range(210)],
    [{"k": "k1", "n": 1}],
]
QUICK = {"1": ["staging", "executor"], "2": ["applying", "executor"]}
ALL = {
    "1": ["staging", "worker"],
    "2": ["staged", "worker"],
    "3": ["applying", "worker"],
    "4": ["staging", "executor"],
    "5": ["staged", "executor"],
    "6": ["applying", "executor"],
}
"""Which batch somebody is killed in, when, and who: see executors_driver.py."""
FRAMES_FIRST = 3
DEADLINE_S = 360.0
KEEP_NOTHING = Options(keep_versions=1, apply_deadline_s=0.0001, wal_retain_s=0.001)


@pytest.fixture(
    params=[
        pytest.param(QUICK, marks=pytest.mark.on_kafka, id="quick"),
        pytest.param(ALL, marks=pytest.mark.slow, id="all"),
    ]
)
def plans(request):
    return request.param


@pytest.fixture
def batches(plans):
    """One before, one for each plan, one after."""
    return [*BATCHES[: len(plans) + 1], BATCHES[-1]]


def expected(batches, version):
    newest, sums = {}, {}
    for batch in batches[:version]:
        for row in batch:
            sums[row["k"]] = {"n": sums.get(row["k"], {"n": 0})["n"] + row["n"]}
            newest[row["k"]] = {"n": row["n"]}
            if row["n"] < 0:
                del newest[row["k"]]
    return {"newest": newest, "sums": sums}


@pytest.fixture
def folder(tmp_path, batches):
    (tmp_path / "input").mkdir()
    for at, rows in enumerate(batches):
        path = tmp_path / "input" / f"{at}.json"
        path.write_text("\n".join(map(json.dumps, rows)))
        os.utime(path, (1_600_000_000 + 100 * at,) * 2)
    return tmp_path


@pytest.fixture
def log(folder, log_at):
    return log_at(folder)


class Notes:
    """What the processes noted, by kind."""

    def __init__(self, folder):
        self._all = [json.loads(line) for line in (folder / "notes").read_text().splitlines()]

    def of(self, kind, batch=None):
        return [n for n in self._all if n["kind"] == kind and batch in (None, n.get("batch"))]


def check_versions(folder, batches):
    """Every version is exactly its batches (I1); one version for each (I2)."""
    with tidegate.connect(f"sqlite://{folder}/store", namespace="flights") as gate:
        assert gate.version() == len(batches)
        for version in range(1, len(batches) + 1):
            with gate.snapshot(version=version) as snapshot:
                found = {name: dict(snapshot.table(name).scan()) for name in ("newest", "sums")}
            assert found == expected(batches, version), version


def check_decisions(log, state, batches):
    """Each batch was decided once; not even a void record says otherwise."""
    records = [decode_record(content, "here") for _, content in log.records("flights")]
    decided = [record for record in records if isinstance(record, Decided)]
    assert [record.version for record in decided] == list(range(1, len(batches) + 1))
    assert [fact.origin.batch_id for fact in state.recent] == list(range(len(batches)))


def needed(opened, state):
    """By version, partition and offset of each message that it is made of."""
    found = {}
    for fact in state.recent:
        frames = read_manifest(opened, fact).frames()
        addresses = [fact.manifest_address, *(frame.address for frame in frames)]
        places = [parse_address(address, "here") for address in addresses]
        found[fact.version] = {(place.partition, offset) for place in places for offset in place.offsets}
    return found


def check_trimmed(folder, log, opened, batches, last):
    """As the background of a driver does it: what is left are the last version's messages."""
    store = open_store(f"sqlite://{folder}/store", "flights")
    with contextlib.closing(store):
        view = fold_all(View(), opened.decisions())
        assert retire_up_to(opened, store, view.state, KEEP_NOTHING, lambda: False) == len(batches)
        Trimmer(opened, store, KEEP_NOTHING).trim(view, time.time_ns() // 1000)
    left = {(message.partition, message.offset) for message in log.messages("flights", "changelog")}
    assert left == last
    with tidegate.connect(f"sqlite://{folder}/store", namespace="flights") as gate:
        found = {name: dict(gate.table(name).scan()) for name in ("newest", "sums")}
        assert found == expected(batches, len(batches))


def check_orphans(log, notes, state, of_version, plans):
    """What the dead had staged is there, acknowledged, and in no version."""
    messages = list(log.messages("flights", "changelog"))
    wanted = set().union(*of_version.values())
    orphans = Counter(m.key for m in messages if (m.partition, m.offset) not in wanted)
    assert not {m.key for m in messages if (m.partition, m.offset) in wanted} & set(orphans)
    for batch, (what, _) in plans.items():
        (dead,) = notes.of("killed", batch)
        of_batch = {key for key in orphans if key.startswith(state.recent[int(batch)].attempt)}
        if what == "staging":
            assert len(dead["acked"]) == FRAMES_FIRST
            assert orphans[dead["segment"]] >= FRAMES_FIRST
        if what == "staged":
            assert of_batch
        if what == "applying":
            assert not of_batch, "whoever applies stages nothing"


@pytest.mark.slow
def test_killed_while_they_stage_have_staged_and_apply_i1_i2_i3_i5_t2(folder, log, drive, plans, batches):
    words = (json.dumps(log.keywords), "local-cluster[2,1,1024]", json.dumps(plans))
    code, told = drive("executors_driver.py", folder, *words, deadline_s=DEADLINE_S)
    assert code == 0, told
    notes = Notes(folder)
    assert {note["batch"]: note["who"] for note in notes.of("killed")} == {b: p[1] for b, p in plans.items()}
    assert len(notes.of("killed")) == len(plans)
    assert [note["batch"] for note in notes.of("called")] == [str(batch) for batch in range(len(batches))]
    check_versions(folder, batches)

    (batch,) = (batch for batch, plan in plans.items() if plan == ["applying", "executor"])
    (dead,) = notes.of("killed", batch)
    appliers = {note["jvm"] for note in notes.of("applied", batch)}
    assert appliers
    assert {note["jvm"] for note in notes.of("staged", batch)} <= set(dead["jvms"])
    assert not appliers & set(dead["jvms"]), "nobody who applied it had staged any of it"

    where = ["--store", f"sqlite://{folder}/store", "--namespace", "flights", *log.words]
    assert json.loads(command("verify", "--json", *where))["findings"] == []
    with log.opened("flights") as opened:
        state = fold_all(View(), opened.decisions()).state
        check_decisions(log, state, batches)
        of_version = needed(opened, state)
        check_orphans(log, notes, state, of_version, plans)
        check_trimmed(folder, log, opened, batches, of_version[len(batches)])
    assert notes.of("ended")[0]["outlived"] == []
