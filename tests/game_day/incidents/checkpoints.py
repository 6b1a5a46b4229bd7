"""Incidents of the query itself: its checkpoint, a second driver, bad rows, a changed column, a restore."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

from game_day.incident import OPERATOR, Incident
from game_day.incidents.redis_servers import redis
from game_day.readers import content_of
from game_day.rig import Rig
from support.wait import wait_until

REFUSED_S = 150.0


def wait_for_refusal(rig: Rig, moment: float) -> None:
    """Wait until the query has failed."""
    seen = rig.driver
    wait_until(lambda: not seen.runs() or not seen.alive(), "the query is refused", REFUSED_S)
    assert rig.observed_since(moment), "nothing was printed"


def checkpoint_deleted(rig: Rig) -> None:
    moment = time.monotonic()
    rig.driver.stop()
    shutil.rmtree(rig.job.checkpoint)
    rig.driver.start()
    wait_for_refusal(rig, moment)

    def adopt_after_the_last_batch() -> None:
        """Move the files that were read out of the folder, as the command's answer asks for."""
        with rig.connect() as gate:
            last = content_of(gate)[1].totals.last
        for file in sorted(rig.generator.folder.iterdir()):
            if json.loads(file.read_text().splitlines()[0])["seq"] <= last:
                file.rename(rig.generator.read_before / file.name)
        shutil.rmtree(rig.job.checkpoint)
        rig.driver.start()
        wait_for_refusal(rig, time.monotonic())
        rig.tidegate("adopt", "--checkpoint", rig.job.checkpoint)

    rig.actions[r"tidegate adopt"] = adopt_after_the_last_batch


def checkpoint_older(rig: Rig) -> None:
    """Put an older copy of the checkpoint back, which lacks at least one batch."""
    rig.driver.stop()
    copy = rig.folder / "copy"
    shutil.copytree(rig.job.checkpoint, copy)
    before = rig.generator.last
    moment = time.monotonic()
    rig.driver.start()
    wait_until(lambda: rig.readers.answered_since(moment) > before, "a batch after the copy", REFUSED_S)
    moment = time.monotonic()
    rig.driver.stop()
    newest = Path(rig.job.checkpoint).rename(rig.folder / "newest")
    copy.rename(rig.job.checkpoint)
    rig.actions[r"checkpoint's newest copy"] = lambda: (
        shutil.rmtree(rig.job.checkpoint),
        shutil.copytree(newest, rig.job.checkpoint),
    )
    rig.driver.start()
    wait_for_refusal(rig, moment)


def second_driver(rig: Rig) -> None:
    """Start the same query a second time elsewhere, with a checkpoint of its own."""
    options = {name: value for name, value in rig.job.options.items() if name != "metrics_port"}
    second = rig.new_driver(checkpoint=f"{rig.folder}/second-checkpoint", options=options)
    second.start()
    wait_until(lambda: not second.runs() or not rig.driver.runs(), "one of the two is refused", REFUSED_S)
    assert rig.driver.runs(), rig.driver.messages
    second.kill()


def poison_row(rig: Rig) -> None:
    """Write a row without a key into the input."""

    def quarantine() -> None:
        rig.job.options["on_bad_record"] = "quarantine"
        rig.restart()

    rig.actions[r"on_bad_record"] = quarantine
    moment = time.monotonic()
    rig.generator.write(k=None)
    wait_for_refusal(rig, moment)


def column_type_changed(rig: Rig) -> None:
    """Release a query whose sums have another type, and take it back where the message proposes so."""

    def reverted() -> None:
        rig.job.totals = before
        rig.restart()

    before = rig.job.totals
    rig.actions[r"type may only widen without loss"] = reverted
    moment = time.monotonic()
    rig.job.totals = ("'all' AS k", "1L AS count", "CAST(n AS DOUBLE) AS n", "seq AS last")
    rig.restart()
    wait_for_refusal(rig, moment)


def bad_data(rig: Rig) -> None:
    """Publish wrong numbers, then restore, mend the file and read it again, as docs/cli.md describes it."""
    rig.readers.sums_follow_input = False
    with rig.connect() as gate:
        good = gate.version()
    bad = rig.generator.write(n=1_000_000)
    last = rig.generator.last
    moment = time.monotonic()
    wait_until(lambda: rig.readers.answered_since(moment) > last, "the wrong numbers are visible", REFUSED_S)
    rig.driver.stop()
    code, output = rig.tidegate("restore", "--to", str(good), "--reprocess")
    assert code == 0, output
    lines = [json.loads(line) for line in bad.read_text().splitlines()]
    lines[0]["n"] = lines[0]["seq"] % 101
    bad.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    kept = int(re.search(r"batch (\d+)", output)[1])
    for folder in ("offsets", "commits"):
        for file in (Path(rig.job.checkpoint) / folder).iterdir():
            number = re.fullmatch(r"\.?(\d+)(?:\.crc)?", file.name)
            if number and int(number[1]) > kept:
                file.unlink()
    rig.driver.start()


INCIDENTS = [
    Incident(
        "checkpoint-deleted",
        "the query's checkpoint is deleted (a file source)",
        checkpoint_deleted,
        redis,
        not_here=r"rebuild-checkpoint",
        actor=OPERATOR,
        alert="TidegateQueryFailed",
    ),
    Incident(
        "checkpoint-older",
        "an older copy of the checkpoint is put back",
        checkpoint_older,
        redis,
        not_here=r"rebuild-checkpoint",
        actor=OPERATOR,
        alert="TidegateQueryFailed",
    ),
    Incident("second-driver", "the same query is started a second time", second_driver, redis),
    Incident(
        "poison-row",
        "a row without a key arrives",
        poison_row,
        redis,
        actor=OPERATOR,
        alert="TidegateBadRecords",
        fast=True,
    ),
    Incident(
        "column-type",
        "a release changes the type of a column",
        column_type_changed,
        redis,
        actor=OPERATOR,
        fast=True,
        alert="TidegateQueryFailed",
    ),
    Incident(
        "bad-data",
        "wrong numbers were published; restore and read again",
        bad_data,
        redis,
        options={"keep_versions": 50},
        actor=OPERATOR,
        note="planned, by the steps of [restore](cli.md#restore)",
    ),
]
