"""``tidegate restore`` of versions that the store has retired: times, previews, advice, several stores."""

import datetime
import re

import pytest

from support.cli import done, done_json, options_for, refused, run
from support.clocks import ClockAhead
from support.places import rows_by_table
from tidegate.committers.steps.retire import retire_up_to
from tidegate.options import Options
from tidegate.testing.example import Example, write_flights

BATCHES, KEPT = 6, 2
HOUR_S = 3_600


def offsets(number):
    return f'[{{"orders":{{"0":{10 * number}}}}}]'


@pytest.fixture
def options(tmp_path):
    return options_for(tmp_path)


@pytest.fixture
def history(tmp_path):
    """Six batches, decided an hour apart, the last one now; the store keeps two. Their contents."""
    clock = ClockAhead(-BATCHES * HOUR_S)
    example = Example(
        f"file://{tmp_path}/wal",
        f"sqlite://{tmp_path}/store",
        options=Options(key_groups=2, keep_versions=KEPT),
        clock=clock,
    )
    contents = {}
    for number in range(1, BATCHES + 1):
        clock.ahead_us += HOUR_S * 1_000_000
        example.write({"notes": {b"n": b"%d" % number, b"%d" % number: b""}}, source_offsets=offsets(number))
        contents[number] = rows_by_table(f"sqlite://{tmp_path}/store")
    driver = example.driver
    retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False)
    driver.store.end_heartbeat(driver.epoch)
    example.close()
    return contents


@pytest.mark.parametrize(
    "form, zone",
    [
        ("4", 0),
        ("90min ago", 0),
        ("%Y-%m-%dT%H:%M:%SZ", 0),
        ("%Y-%m-%dT%H:%M:%S", 0),
        ("%Y-%m-%dT%H:%M:%S+09:00", 9),
        ("%Y-%m-%dT%H:%M:%S-05:30", -5.5),
        ("%Y-%m-%d %H:%M", 0),
        ("%H:%M", 0),
    ],
)
def test_a_version_is_named_by_a_time_in_any_zone(history, options, tmp_path, form, zone):
    there = datetime.timezone(datetime.timedelta(hours=zone))
    time = datetime.datetime.now(there) - datetime.timedelta(hours=1.5)
    told = done_json("restore", "--to", time.strftime(form), "--yes", *options)
    assert (told["restored"], told["visible"]) == (4, 7)
    assert rows_by_table(f"sqlite://{tmp_path}/store") == history[4]
    assert [each["batch"] for each in told["undone"]] == [4, 5]


@pytest.mark.parametrize("to", ["1h30min ago", "25:00", "ago", "soon", "-1", "0"])
def test_what_is_no_version_and_no_time_is_refused(options, to):
    assert "is no version" in run("restore", f"--to={to}", *options).stderr


def test_the_printed_time_of_a_version_names_it_again(history, options):
    decided = done_json("restore", "--to", 3, "--yes", *options)["decided_at"]
    assert "shows version 3 already" in refused(2, "restore", "--to", decided, "--yes", *options)


def test_the_preview_names_version_time_batch_and_source_and_what_will_not_come_again(history, options):
    preview = run("restore", "--to", "150min ago", *options)
    assert preview.exit_code == 2
    first, *lines, question = preview.stderr.splitlines()
    assert re.fullmatch(
        r"version 3, decided at \S+\+00:00, batch 2: its rows are computed from versions 1 to 3 of the log",
        first,
    )
    assert lines[0] == "batches of the query that would be undone, and would not come again by themselves:"
    assert [line.split(":")[0] for line in lines[1:4]] == [
        f"  batch {n} (version {n + 1})" for n in (3, 4, 5)
    ]
    assert lines[1].endswith(f"2 changes (notes 2), up to the source offsets {offsets(4)}")
    assert any("`tidegate restore --to 3 --reprocess --namespace flights`" in line for line in lines)
    assert any(""".option("startingOffsets", '{"orders":{"0":30}}')""" in line for line in lines)
    assert "versions 4 to 6 of namespace flights would be undone: add --yes" in question


def test_the_advice_after_a_restore_leads_to_a_checkpoint_after_the_last_batch_held(
    history, options, tmp_path
):
    text = done("restore", "--to", 3, "--yes", *options)
    (command,) = re.findall(r"`tidegate (restore [^`]*)`", text)
    text = done(*command.split(), "--yes", *options)
    assert "rm -f offsets/{3..6} " in text
    assert "`tidegate rebuild-checkpoint FOLDER --namespace flights`" in text
    made = done_json("rebuild-checkpoint", tmp_path / "again", *options)
    assert (made["batch"], made["source_offsets"]) == (2, offsets(3))
    example = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", options=Options(key_groups=2))
    assert example.write({"notes": {b"n": b"again"}}, batch_id=3) == 8
    example.close()


def test_a_restore_after_a_restore_names_the_batches_that_are_held_again(history, options):
    done("restore", "--to", 2, "--yes", *options)
    told = done_json("restore", "--to", 4, "--yes", *options)
    assert (told["undone"], told["returned"]) == ([], [3, 4])
    text = done("restore", "--to", 6, "--yes", *options)
    assert (
        "undone by an earlier restore, and are held again: batch 4 (version 5) to batch 5 (version 6)" in text
    )


def test_an_export_is_a_base_and_is_named(history, options, tmp_path):
    folder = tmp_path / "export"
    done("export", folder, "--at", 5, *[option for option in options if not option.startswith("--wal")])
    text = done("restore", "--to", 5, "--base", folder, "--yes", *options)
    assert f"the store has its rows; {folder} is not needed" in text
    assert "version 5, which is newer than 4" in refused(
        2, "restore", "--to", 4, "--base", folder, "--yes", *options
    )


def test_an_export_of_another_history_is_refused_though_its_rows_are_not_needed(history, options, tmp_path):
    other = tmp_path / "other"
    write_flights(f"file://{other}/wal", f"sqlite://{other}/store", "flights")
    done("export", tmp_path / "export", f"--store=sqlite://{other}/store", "--namespace=flights")
    text = refused(2, "restore", "--to", 5, "--base", tmp_path / "export", "--yes", *options)
    assert "is an export of namespace flights (" in text
    assert done_json("status", *options)["visible"] == 6


def test_all_stores_of_the_list_get_the_restored_version(history, options, tmp_path):
    main, copy = f"main=sqlite://{tmp_path}/store", f"b=sqlite://{tmp_path}/b"
    done("store", "add", copy, f"--store={main}", *options[1:])
    both = [f"--store={main}", f"--store={copy}", *options[1:]]
    told = done_json("restore", "--to", 2, "--yes", *both)
    assert [(each["name"], each["visible"]) for each in told["stores"]] == [("b", told["visible"])]
    for name in ("store", "b"):
        assert rows_by_table(f"sqlite://{tmp_path}/{name}")["notes"] == history[2]["notes"]
