"""Kafka's clients in Python workers: made once, kept, never shared by two processes, no hindrance (T13)."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict

import pytest

import tidegate

pytestmark = [pytest.mark.spark, pytest.mark.only_log("kafka"), pytest.mark.timeout(300)]

ROWS = [{"k": f"k{n}", "n": n} for n in range(60)]
KINDS = {"Producer", "ReadingConsumer", "AdminClient"}


@pytest.fixture
def run(tmp_path, log_at, drive):
    """The driver over so many batches; its notes by kind."""

    def driver(batches, master, plans=None):
        (tmp_path / "input").mkdir()
        for at in range(batches):
            path = tmp_path / "input" / f"{at}.json"
            path.write_text("\n".join(map(json.dumps, ROWS)))
            os.utime(path, (1_600_000_000 + 100 * at,) * 2)
        log = json.dumps(log_at(tmp_path).keywords)
        code, told = drive("executors_driver.py", tmp_path, log, master, json.dumps(plans or {}))
        assert code == 0, told
        with tidegate.connect(f"sqlite://{tmp_path}/store", namespace="flights") as gate:
            assert gate.version() == batches
            sums = {row["k"]: {"n": batches * row["n"]} for row in ROWS}
            assert dict(gate.table("sums").scan()) == sums
        found = defaultdict(list)
        for line in (tmp_path / "notes").read_text().splitlines():
            found[json.loads(line)["kind"]].append(json.loads(line))
        return found

    return driver


def made(notes):
    """By process, how many clients of each kind it made."""
    found = defaultdict(Counter)
    for note in notes["made"]:
        found[note["process"]][note["what"]] += 1
    return found


def served(notes, kind):
    """By process, the batches that it worked for."""
    found = defaultdict(set)
    for note in notes[kind]:
        found[note["process"]].add(note["batch"])
    return found


@pytest.mark.on_kafka
def test_a_worker_makes_its_clients_once_and_uses_no_others_t13(run):
    """A copy of a worker, made in the middle, makes its own; the worker goes on with those it has."""
    notes = run(5, "local[2]", {"2": ["fork", "worker"]})
    assert all(note["process"] == note["maker"] for note in notes["used"])
    (forking,) = notes["forking"]
    copies = notes["forked"]
    assert (forking["status"], forking["right"]) == (0, True)
    assert [(c["parent"], c["same"], c["right"]) for c in copies] == [
        (forking["process"], True, True),
        (forking["process"], False, True),
    ]
    assert copies[0]["process"] == copies[1]["process"] != forking["process"]
    of = made(notes)
    assert of.pop(copies[0]["process"]) == Counter(dict.fromkeys(KINDS, 1)), "two logs, which share them"
    assert of
    for clients in of.values():
        assert clients.keys() <= KINDS
        assert set(clients.values()) == {1}
    for kind in ("staged", "applied"):
        assert max(map(len, served(notes, kind).values())) > 1, "none was used again: this shows nothing"
    assert forking["process"] in served(notes, "staged")
    assert len(served(notes, "staged")[forking["process"]] - {"0", "1", "2"}) > 0, "it staged on"
    assert notes["ended"][0]["outlived"] == []


def test_workers_that_end_as_python_does_end_t13(run):
    """Without Spark's daemon each task has a process of its own, which frees its clients as it ends."""
    notes = run(2, "local[2] no-daemon")
    workers = {note["process"] for kind in ("staged", "applied") for note in notes[kind]}
    assert len(workers) >= 4
    assert all(note["process"] == note["maker"] for note in notes["used"])
    assert notes["ended"][0]["outlived"] == []
