"""Commands that read: get, scan and history; what each prints, and how it refuses."""

import json
import re

import pytest

import tidegate
from support.cli import done, done_json, options_for, readers_only, refused, run
from tidegate.options import Options
from tidegate.testing.example import BATCHES, Example


def test_get_prints_a_value(flights):
    options = readers_only(flights)
    assert done("get", "aircraft", "N14228", *options) == "carrier\tUA\nflights\t2\n"
    assert done("get", "aircraft", "N14228", "--at", 1, *options) == "carrier\tUA\nflights\t1\n"
    assert done("get", "notes", "0x0001", *options) == "note\tplain bytes\n"
    assert done_json("get", "legs", "EWR", "1545", *options) == {
        "table": "legs",
        "key": ["EWR", 1545],
        "version": 3,
        "value": {"dest": "IAH"},
    }


def test_get_of_an_absent_key(flights):
    options = readers_only(flights)
    assert "no key N24211 at version 3" in refused(1, "get", "aircraft", "N24211", *options)
    result = run("get", "aircraft", "N24211", "--json", *options)
    assert (result.exit_code, json.loads(result.stdout)["value"]) == (1, None)
    assert done("get", "aircraft", "N24211", "--at", 2, *options)


@pytest.mark.parametrize(
    "key,message",
    [
        (["EWR"], "give 2 KEY"),
        (["EWR", "1545", "x"], "give 2 KEY"),
        (["EWR", "x"], "no int, the type of key column flight"),
    ],
)
def test_get_with_a_key_that_does_not_fit(flights, key, message):
    assert message in refused(2, "get", "legs", *key, *readers_only(flights))


def test_get_with_a_key_out_of_range(flights):
    assert "flight int" in refused(3, "get", "legs", "EWR", 2**31, *readers_only(flights))


def test_keys_are_read_by_their_types():
    from tidegate.keys.groups import encode_key
    from tidegate.values.key_text import parse_key
    from tidegate.wal.record import Column

    typed = {
        "string": (" x", b" x"),
        "binary": ("0xff00", b"\xff\x00"),
        "boolean": ("TRUE", b"true"),
        "date": ("2026-11-21", b"2026-11-21"),
        "tinyint": ("-5", b"-5"),
        "decimal(10,2)": ("1.5", b"1.50"),
        "timestamp": ("2026-11-21T12:00:00.5+02:00", b"1795255200500000"),
        "timestamp_ntz": ("2026-11-21 10:00", b"1795255200000000"),
    }
    for kind, (text, encoded) in typed.items():
        value = parse_key("t", [text], [Column("k", kind)])
        assert encode_key([value], [kind]) == encoded
    for kind, text in {"binary": "0xf", "boolean": "yes", "date": "21.11.", "decimal(3,1)": "x"}.items():
        with pytest.raises(tidegate.ConfigError, match=re.escape(kind)):
            parse_key("t", [text], [Column("k", kind)])


def test_scan_prints_rows(flights):
    options = readers_only(flights)
    heading, *rows = done("scan", "airports", *options).splitlines()
    assert heading == "origin\tdepartures\tdelay"
    assert sorted(rows) == ["EWR\t2\t1.5", "JFK\t1\t-1.0", "LGA\t1\t4.0"]
    lines = done("scan", "airports", "--at", 1, "--json", *options).splitlines()
    assert sorted(map(json.loads, lines), key=lambda row: row["key"]) == [
        {"key": "EWR", "value": {"departures": 1, "delay": 2.0}},
        {"key": "LGA", "value": {"departures": 1, "delay": 4.0}},
    ]
    assert len(done("scan", "airports", "--limit", 1, "--json", *options).splitlines()) == 1
    assert done("scan", "notes", *options) == "id\tnote\n\\x00\\x01\tplain bytes\n"


def test_history_lists_versions(flights):
    options = readers_only(flights)
    heading, *rows = done("history", *options).splitlines()
    assert heading.startswith("version\tfrom\tdecided")
    assert [row.split("\t")[:2] for row in rows] == [["1", "batch 0"], ["2", "batch 1"], ["3", "batch 2"]]
    (last,) = done_json("history", "--limit", 1, *options)
    assert (last["version"], last["batch"], last["changes"]) == (3, 2, {"aircraft": 1, "airports": 1})
    tasks = heading.split("\t").index("tasks")
    assert [row.split("\t")[tasks] for row in rows] == [str(last["parallelism"])] * 3


@pytest.mark.parametrize(
    "arguments,code,message",
    [
        (["get", "planes", "N1"], 2, "tables there are: aircraft, airports, legs, notes"),
        (["scan", "planes"], 2, "tables there are"),
        (["get", "aircraft", "N1", "--at", "4"], 2, "not visible yet"),
    ],
)
def test_what_is_not_there_is_said(flights, arguments, code, message):
    assert message in refused(code, *arguments, *readers_only(flights))


def test_a_retired_version_has_its_exit_code(tmp_path):
    example = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", options=Options(key_groups=2))
    for rows in BATCHES:
        example.write(rows)
    example.driver.store.announce(3)
    example.close()
    options = readers_only(options_for(tmp_path))
    assert "version 2" in refused(11, "get", "airports", "EWR", "--at", 2, *options)


@pytest.mark.parametrize(
    "command",
    [["status"], ["history"], ["get", "t", "k"], ["scan", "t"], ["recover"], ["verify"], ["vacuum"]],
)
def test_an_unknown_namespace_says_where_it_looked_and_makes_nothing(tmp_path, command):
    options = options_for(tmp_path, "nowhere")
    of_stores = command[0] in ("history", "get", "scan", "vacuum")
    message = refused(2, *command, *(readers_only(options) if of_stores else options))
    assert ("there is no namespace 'nowhere'" if of_stores else "nowhere") in message
    assert str(tmp_path) in message
    assert "tidegate init" in message
    assert list(tmp_path.iterdir()) == []
