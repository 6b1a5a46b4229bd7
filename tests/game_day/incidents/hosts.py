"""Incidents of the driver's host: its clock, its disks, and another release of tidegate."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from game_day.incident import OPERATOR, Incident
from game_day.incidents.checkpoints import wait_for_refusal
from game_day.incidents.kafka_brokers import kafka
from game_day.incidents.redis_servers import redis
from game_day.rig import Rig
from services.support.servers import ROOT
from support.wait import wait_until

AHEAD_S = 2 * 3600.0
ROWS_S = 200.0
REVISIONS_BACK = 30


def _new_rows(rig: Rig, what: str) -> None:
    """Wait until both readers have rows that were written from now on."""
    moment, before = time.monotonic(), rig.generator.last
    wait_until(lambda: rig.readers.answered_since(moment) > before or not rig.driver.runs(), what, ROWS_S)
    assert rig.driver.runs(), rig.driver.messages


# -- clocks ---------------------------------------------------------------------------------------


def clock_ahead(rig: Rig) -> None:
    """A driver whose clock is 2 h ahead writes, and is killed; another one follows, with the right clock."""
    rig.driver.stop()
    rig.driver.kill()
    rig.driver = rig.new_driver(clock_ahead_s=AHEAD_S)
    rig.driver.start()
    _new_rows(rig, "rows of the driver whose clock is ahead")
    rig.driver.kill()
    code, output = rig.tidegate("recover")  # refused while a writer counts as running
    assert code == 0, output
    rig.messages.clear()
    rig.restart()


def clock_ahead_of_brokers(rig: Rig) -> None:
    """The host of the driver gets a clock that is 2 h ahead of the brokers'."""

    def set_right() -> None:
        rig.job.clock_ahead_s = 0.0
        rig.driver.kill()
        rig.restart()

    rig.actions[r"Set the clocks right"] = set_right
    moment = time.monotonic()
    rig.driver.stop()
    rig.job.clock_ahead_s = AHEAD_S
    rig.driver.start()
    wait_for_refusal(rig, moment)


# -- disks ----------------------------------------------------------------------------------------


def _unmounted(folder: Path) -> Callable[[], None]:
    """Leave the empty folder of a disk that is not mounted; return the function that mounts it again."""
    away = folder.with_name(f"{folder.name}.away")
    folder.rename(away)
    folder.mkdir()

    def mount() -> None:
        shutil.rmtree(folder)
        away.rename(folder)

    return mount


def checkpoint_unmounted(rig: Rig) -> None:
    """The query starts while the disk of its checkpoint is not mounted."""
    rig.driver.stop()
    moment = time.monotonic()
    mount = _unmounted(Path(rig.job.checkpoint))

    def put_back() -> None:
        mount()
        rig.restart()

    rig.actions[r"Put the old checkpoint back"] = put_back
    rig.driver.start()
    wait_for_refusal(rig, moment)


def checkpoint_unwritable(rig: Rig) -> None:
    """The folder of the checkpoint fails under the query, for 10 s: a file is in its place."""
    folder = Path(rig.job.checkpoint)
    away = folder.rename(folder.with_name("checkpoint.away"))
    folder.write_text("")
    time.sleep(10.0)
    folder.unlink()
    away.rename(folder)


def store_unmounted(rig: Rig) -> None:
    """The disk of the SQLite store is gone under the query, and while it starts again."""
    moment = time.monotonic()
    mount = _unmounted(rig.folder / "store")
    rig.actions[r"Mount it"] = mount
    wait_for_refusal(rig, moment)
    moment = time.monotonic()
    rig.driver.start()
    wait_for_refusal(rig, moment)
    assert not any((rig.folder / "store").iterdir()), "a second store was made"


# -- releases ---------------------------------------------------------------------------------------


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _older_revision() -> str:
    return _git("rev-list", "-n", "1", f"--skip={REVISIONS_BACK}", "HEAD")


def without_history() -> str:
    return "" if _older_revision() else f"needs git, and a history of {REVISIONS_BACK} revisions"


def older_release(folder: Path) -> dict[str, str]:
    """Unpack the package of an older revision; return the variables by which a driver imports it."""
    source, archive = folder / "older", folder / "older.tar"
    source.mkdir()
    _git("archive", f"--output={archive}", _older_revision())
    subprocess.run(["tar", "-xf", str(archive), "-C", str(source)], check=True)
    subprocess.run(["python", "tools/link_tree.py"], cwd=source, check=True)
    paths = (source / ".types", source / "tests")
    return {"PYTHONPATH": ":".join(map(str, paths)), "TIDEGATE_GAME_DAY_SOURCE": str(source)}


def upgraded(rig: Rig) -> None:
    """Stop the older query and start it with this revision; then the way back, and forward again."""
    older = rig.environment
    for environment in ({}, older, {}):
        rig.driver.stop()
        rig.driver.kill()
        rig.environment = environment
        rig.restart()
        _new_rows(rig, "rows of the other release")


INCIDENTS = [
    Incident(
        "clock-ahead",
        "a driver whose clock is 2 h ahead wrote, and is replaced",
        clock_ahead,
    ),
    Incident(
        "clock-ahead-of-brokers",
        "the driver's clock is 2 h ahead of the broker's",
        clock_ahead_of_brokers,
        redis,
        kafka,
        actor=OPERATOR,
        alert="TidegateQueryFailed",
    ),
    Incident(
        "checkpoint-unmounted",
        "the query starts while its checkpoint's disk is not mounted",
        checkpoint_unmounted,
        redis,
        not_here=r"rebuild-checkpoint",
        actor=OPERATOR,
        alert="TidegateQueryFailed",
        fast=True,
    ),
    Incident(
        "checkpoint-unwritable",
        "the checkpoint's folder fails under the query for 10 s",
        checkpoint_unwritable,
        redis,
        actor=OPERATOR,
        alert="TidegateQueryFailed",
    ),
    Incident(
        "store-unmounted",
        "the disk of the SQLite store is away, and the query starts again",
        store_unmounted,
        actor=OPERATOR,
        alert="TidegateQueryFailed",
        fast=True,
    ),
    Incident(
        "upgraded",
        "tidegate is upgraded, taken back and upgraded again",
        upgraded,
        redis,
        environment=older_release,
        missing=without_history,
        actor=OPERATOR,
        note="planned, readers first",
    ),
]
