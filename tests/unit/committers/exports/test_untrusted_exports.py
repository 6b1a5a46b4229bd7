"""Exports that somebody made up, with checksums that fit: refused before anything is decided, in words."""

import datetime
import os
import struct
import subprocess
import sys
import textwrap

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet

import tidegate
from tampering.made_export import MadeTable, make_export, placed, stamp
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.exports import parquet_pages
from tidegate.committers.exports.export_format import MANIFEST, place_of
from tidegate.committers.exports.export_rows import ROWS
from tidegate.committers.exports.import_rows import import_rows, read_whole
from tidegate.errors import ConfigError, CorruptError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.testing.example import Example
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Column, TableSchema
from tidegate.wal.staging import quarantine
from tidegate.wal.staging.own_tables import DUE_COLUMNS, INSTANCES_SCHEMA, ITEM_KEY, QUEUE_SCHEMA

PEOPLE = TableSchema((Column("name", "string"),), (Column("age", "int"), Column("born", "date")))
FIT = b'+{"age":7,"born":"2019-01-31"}'


def imported(folder, namespace="made"):
    """The version that an import makes; the store and the log are in the folder above."""
    wal, store = f"file://{folder.parent}/wal", f"sqlite://{folder.parent}/store"
    driver = Coordinator(
        Endpoints(namespace, wal, store),
        open_log(wal, namespace),
        open_store(store, namespace),
        Options(key_groups=4),
    )
    try:
        return import_rows(driver, folder, *read_whole(folder)).version
    finally:
        driver.store.close()


def refused(folder, match, error=CorruptError):
    """It is refused in one line, and neither decided nor staged."""
    with pytest.raises(error, match=match) as caught:
        imported(folder)
    assert "\n" not in str(caught.value)
    assert not list((folder.parent / "wal").rglob("*.seg"))
    return str(caught.value)


def one_table(place, pairs, schema=PEOPLE, name="people", *, expires=False, **fields):
    return make_export(place / "made", {name: MadeTable(schema, [placed(pairs)], expires)}, **fields)


def test_what_is_made_up_rightly_is_imported(tmp_path):
    """Else the tests below could refuse everything."""
    expiry = struct.pack(">q", 2**60)
    sequence = b"\x02ab"
    json = FIT[1:]
    rows = [(b"a", FIT), (b"b", b"e" + expiry + json), (b"c", b"s" + sequence + json)]
    rows.append((b"d", b"x" + expiry + sequence + json))
    assert imported(one_table(tmp_path, rows, expires=True)) == 1
    with tidegate.connect(f"sqlite://{tmp_path}/store", "made") as gate:
        row = {"age": 7, "born": datetime.date(2019, 1, 31)}
        assert dict(gate.table("people").scan()) == dict.fromkeys("abcd", row)


BAD_VALUES = {
    "flags": (b"\xff\xffjunk", r"starts with b'\\xff"),
    "no flags": (b"", "starts with b''"),
    "expiry cut": (b"e\0", "starts with b'e"),
    "no such expiry": (b"e" + bytes(8) + FIT[1:], "it expires, and the table is not one whose rows do"),
    "sequence cut": (b"s\x09ab", "starts with b's"),
    "delete": (b"-", "delete marker"),
    "delete with sequence": (b"d\x01a", "delete marker"),
    "no JSON": (b"+{", "does not fit"),
    "another type": (b'+{"age":"x"}', "does not fit"),
    "not UTF-8": (b'+{"other":"\xff"}', "does not fit"),
    "out of range": (b'+{"age":3000000000}', "does not fit"),
    "year 0": (b'+{"born":"0000-01-31"}', "years 1 to 9999"),
    "year 10000": (b'+{"born":"+10000-01-31"}', "years 1 to 9999"),
    "two objects": (b'+{"age":1},{"age":2}', "does not fit"),
    "nested": (b'+{"deep":' + b"[" * 100_000, "does not fit"),
}


@pytest.mark.parametrize("which", BAD_VALUES)
def test_a_value_that_no_reader_can_read_is_refused_t61(tmp_path, which):
    value, why = BAD_VALUES[which]
    folder = one_table(tmp_path, [(b"a", FIT), (b"b", value), (b"c", FIT)])
    told = refused(folder, why)
    assert "part-00000.parquet, row " in told
    assert "key 'b'" in told


NUMBERS = TableSchema(
    (Column("id", "bigint"), Column("at", "decimal(4,2)")),
    (
        Column("amount", "decimal(10,2)"),
        Column("times", "array<timestamp>"),
        Column("by", "map<int,decimal(4,2)>"),
        Column("share", "float"),
        Column("of", "timestamp"),
    ),
)
BAD_NUMBERS = {
    "digits": b'{"amount":123456789.12}',
    "bomb": b'{"amount":1e400000000}',
    "crash of Arrow": b'{"amount":1e-999999999}',
    "crash in a map": b'{"by":{"1":1e-999999999}}',
    "key of a map": b'{"by":{"x":1.00}}',
    "range of a map's key": b'{"by":{"3000000000":1.00}}',
    "time": b'{"times":["2013-13-01T00:00:00Z"]}',
    "text": b'{"share":"nan"}',
    "zone": b'{"of":"2013-01-01T00:00:00+05:30"}',
    "digits of a second": b'{"of":"2013-01-01T00:00:00.1234567Z"}',
}


@pytest.mark.parametrize("which", BAD_NUMBERS)
def test_a_number_or_time_that_its_type_has_not_is_refused_t61(tmp_path, which):
    right = b'+{"amount":1.50,"times":["2013-01-01T00:00:00Z"],"by":{"-1":0.25},"share":"NaN"}'
    folder = one_table(
        tmp_path, [(b"1:1,4:0.50,", right), (b"1:2,4:0.50,", b"+" + BAD_NUMBERS[which])], NUMBERS
    )
    refused(folder, r"row [12], key \(2, Decimal\('0.50'\)\)")


NESTED = TableSchema(
    (Column("id", "int"),),
    (
        Column("n", "int"),
        Column("s", "struct<a:int,b:struct<c:int>>"),
        Column("many", "array<struct<a:int>>"),
        Column("by", "map<string,struct<a:int>>"),
    ),
)
MORE_FIELDS = [
    b'{"n":1,"owner":"hidden"}',
    b'{"n":1,"n":2}',
    b'{"n":1,"\\u006e":2}',
    b'{"s":{"a":1,"x":2}}',
    b'{"s":{"b":{"c":1,"c":2}}}',
    b'{"many":[null,{"a":1},{"a":1,"x":[]}]}',
    b'{"by":{"k":{"x":1}}}',
]


@pytest.mark.parametrize("value", MORE_FIELDS)
def test_a_field_that_no_column_has_or_that_is_there_twice_is_refused_t61(tmp_path, value):
    """Readers skipped it, until a column of its name came: then it was the value of old rows."""
    right = b'+{"n":1,"s":{"b":null},"many":[{"a":null},null],"by":{"n":{"a":1},"x":null,"x":{}}}'
    folder = one_table(tmp_path, [(b"1", right), (b"2", b"+" + value)], NESTED)
    refused(folder, "row [12], key 2.*it has a field twice, or one that is no column's")


BAD_KEYS = {
    "string": (b"\xff",),
    "int": (b"007", b"+7", b" 7", b"3000000000", b"", b"x", b"-0"),
    "date": (b"2013-02-30", b"0000-01-01", b"20130101", b"2013-W01-1"),
    "boolean": (b"True", b"1"),
    "decimal(4,2)": (b"1.5", b"-0.00", b"100.00", b"1e-999999999", "\u0661.50".encode(), b"01.50"),
}


@pytest.mark.parametrize("kind,key", [(kind, key) for kind, keys in BAD_KEYS.items() for key in keys])
def test_a_key_that_is_not_what_its_value_is_encoded_as_is_refused_t61(tmp_path, kind, key):
    """Such a row would be there in a scan, and absent when it is asked for."""
    schema = TableSchema((Column("id", kind),), PEOPLE.value)
    told = refused(one_table(tmp_path / "single", [(key, FIT)], schema), "row 1, key b.*it is no key of")
    assert f"(id {kind})" in told
    schema = TableSchema((Column("id", kind), Column("n", "int")), PEOPLE.value)
    composite = b"%d:%b,1:7," % (len(key), key)
    refused(one_table(tmp_path / "two", [(composite, FIT)], schema), "it is no key")


@pytest.mark.parametrize("key", [b"01:a,1:7,", b"1:a,1:7,x", b"1:a,", b"9:a,1:7,", b"1:a,1:7,1:8,"])
def test_a_composite_key_that_is_framed_otherwise_is_refused_t61(tmp_path, key):
    schema = TableSchema((Column("id", "string"), Column("n", "int")), PEOPLE.value)
    refused(one_table(tmp_path, [(key, FIT)], schema), "it is no key")


SCHEMAS = {
    "type": {"value": [{"name": "v", "type": "evil"}], "why": "evil is not a type"},
    "format": {"value_format": "zzz", "why": "value format 'zzz' is not known"},
    "no key": {"key": [], "why": "no key column"},
    "twice": {"key": [{"name": "k", "type": "int"}] * 2, "why": "column 'k' is there twice"},
    "float key": {"key": [{"name": "k", "type": "double"}], "why": "'double', which no key is"},
    "decimal key": {"key": [{"name": "k", "type": "decimal(4, 2)"}], "why": "which no key is"},
    "bytes of two": {
        "value": [{"name": n, "type": "int"} for n in "ab"],
        "value_format": "bytes",
        "why": "of 2",
    },
    "nested": {"value": [{"name": "v", "type": "array<" * 300 + "int" + ">" * 300}], "why": "nested more"},
}


@pytest.mark.parametrize("which", SCHEMAS)
def test_a_schema_that_no_table_can_have_is_refused_t61(tmp_path, which):
    changes = dict(SCHEMAS[which])
    why = changes.pop("why")
    told = refused(one_table(tmp_path, [], msgspec.to_builtins(PEOPLE) | changes), why)
    assert "manifest.json, table people: " in told


OWN = {
    "_local": (PEOPLE, "own table of that name has other columns"),
    "_quarantine": (INSTANCES_SCHEMA, "own table of that name has other columns"),
    "_local.x": (PEOPLE, "own table of that name has other columns"),
    "_mine": (PEOPLE, "none is called so"),
    "_deleted._local": (PEOPLE, "none is called so"),
    "_deleted.people": (
        TableSchema((Column("n", "int"),), (Column("s", "int"),)),
        "not the key of table people",
    ),
    "_due.people": (
        TableSchema((Column("n", "int"),), DUE_COLUMNS),
        "not the key of table people",
    ),
    "_due.others": (PEOPLE, "own table of that name has other columns"),
    "_due_at.people": (PEOPLE, "own table of that name has other columns"),
    "_due_at._due": (QUEUE_SCHEMA, "none is called so"),
}


@pytest.mark.parametrize("name", OWN)
def test_tidegates_own_tables_have_their_own_columns_t61(tmp_path, name):
    schema, why = OWN[name]
    folder = make_export(tmp_path / "made", {name: MadeTable(schema, []), "people": MadeTable(PEOPLE, [])})
    refused(folder, why)


def test_tidegates_own_tables_are_imported(tmp_path):
    deleted = TableSchema(PEOPLE.key, (Column("sequence", "bigint"),))
    own = {"_local": INSTANCES_SCHEMA, "_quarantine": quarantine.SCHEMA, "_deleted.people": deleted}
    own |= {"_due.people": TableSchema(PEOPLE.key, DUE_COLUMNS), "_due_at.people": QUEUE_SCHEMA}
    own["_local.seen"] = TableSchema(ITEM_KEY, PEOPLE.value)
    tables = {name: MadeTable(schema, []) for name, schema in own.items()}
    assert imported(make_export(tmp_path / "made", tables | {"people": MadeTable(PEOPLE, [])})) == 1


OWN_ROWS = {
    "a time below 0": ("_due.people", TableSchema(PEOPLE.key, DUE_COLUMNS), b'{"due_us":5,"queued_us":-1}'),
    "no time": ("_due.people", TableSchema(PEOPLE.key, DUE_COLUMNS), b'{"due_us":5}'),
    "no items": ("_local", INSTANCES_SCHEMA, b'{"items":null,"parallelism":1}'),
    "no instance": ("_local", INSTANCES_SCHEMA, b'{"items":0,"parallelism":0}'),
    "no table": ("_quarantine", quarantine.SCHEMA, b'{"table":null,"cause":"x"}'),
}


@pytest.mark.parametrize("which", OWN_ROWS)
def test_a_row_that_tidegate_does_not_write_into_its_own_tables_is_refused_t61(tmp_path, which):
    """It was imported, and the next batch, or verify, met it."""
    name, schema, value = OWN_ROWS[which]
    key = b"3:now,1:0," if name == "_local" else b"a"
    tables = {name: MadeTable(schema, [placed([(key, b"+" + value)])]), "people": MadeTable(PEOPLE, [])}
    tables |= {"_local.now": MadeTable(TableSchema(ITEM_KEY, PEOPLE.value), [])} if name == "_local" else {}
    refused(make_export(tmp_path / "made", tables), "row 1.*it is no row of tidegate's own")


def test_deletes_without_their_table_are_refused(tmp_path):
    """The table is the namespace's, and the export has none of that name."""
    options = Options(key_groups=4)
    example = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", "made", options=options)
    example.schemas["people"] = PEOPLE
    example.write({"people": {"a": {"age": 7}}})
    example.close()
    deleted = TableSchema((Column("n", "int"),), (Column("s", "int"),))
    folder = make_export(tmp_path / "made", {"_deleted.people": MadeTable(deleted, [])})
    with pytest.raises(ConfigError, match=r"table _deleted\.people without table people, and they"):
        imported(folder)


def three_rows():
    return placed([(b"a", FIT), (b"b", FIT), (b"c", FIT)])


ORDERS = {
    "twice": (lambda rows: [[rows[0], *rows]], "row 2.*it is there twice"),
    "twice in two files": (lambda rows: [rows, rows[-1:]], "part-00001.parquet, row 1.*it is there twice"),
    "turned": (lambda rows: [rows[::-1]], "row 2.*not in its place"),
    "files turned": (lambda rows: [rows[1:], rows[:1]], "part-00001.parquet, row 1.*not in its place"),
    "another group": (lambda rows: [[(3 - rows[0][0], *rows[0][1:])]], "row 1.*its key group is not"),
    "no group": (lambda rows: [[(None, *rows[0][1:])]], "row 1.*key group is null"),
    "no key": (lambda rows: [[(*rows[0][:1], None, FIT)]], "row 1: its key or its value is null"),
    "no value": (lambda rows: [[(*rows[0][:2], None)]], "row 1.*its key or its value is null"),
}


@pytest.mark.parametrize("which", ORDERS)
def test_rows_that_are_not_in_order_are_refused_t61(tmp_path, which):
    change, why = ORDERS[which]
    refused(make_export(tmp_path / "made", {"people": MadeTable(PEOPLE, change(three_rows()))}), why)


def test_keys_and_values_over_their_limits_are_refused(tmp_path):
    schema = TableSchema(PEOPLE.key, (Column("v", "binary"),), "bytes")
    refused(
        one_table(tmp_path / "key", [(b"k" * 32_769, b"+v")], schema), "its key takes 32769 bytes, 32768 are"
    )
    refused(
        one_table(tmp_path / "value", [(b"k", bytes(2**24 + 300))], schema), "its value takes 16777516 bytes"
    )


FIELDS = {
    "key_groups": 0,
    "version": -1,
    "decided_at_us": 2**63,
    "namespace": "\x1b]0;pwn\x07",
    "format": "1",
}


@pytest.mark.parametrize("field", FIELDS)
def test_fields_of_the_manifest_that_no_export_has_are_refused_t61(tmp_path, field):
    refused(one_table(tmp_path, [], **{field: FIELDS[field]}), field, (CorruptError, ConfigError))


def test_a_table_that_has_not_the_rows_of_its_files_is_refused(tmp_path):
    folder = one_table(tmp_path, [(b"a", FIT)])
    manifest = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(manifest.replace('"rows":1,"files"', '"rows":2,"files"'))
    refused(folder, "it has 2 rows, and its files have others")


# -- sizes ----------------------------------------------------------------------------------------


def _pipe(path):
    path.unlink()
    os.mkfifo(path)


def _zeros(path):
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("become", [_pipe, _zeros])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path, become):
    folder = one_table(tmp_path, [(b"a", FIT)])
    part = place_of(folder, "people", 0)
    become(part)
    refused(folder, r"part-00000\.parquet cannot be read: it is no regular file")
    become(folder / MANIFEST)
    refused(folder, "it is no regular file", ConfigError)


@pytest.mark.timeout(30)
def test_a_file_of_another_size_is_refused_before_it_is_read(tmp_path):
    folder = one_table(tmp_path, [(b"a", FIT)])
    os.truncate(place_of(folder, "people", 0), 2**40)
    refused(folder, "has 1099511627776 bytes with checksum not computed")


def bomb(place, rows=1_000, value_bytes=4_000_000, **options):
    """A file of some kilobytes with rows of megabytes: the dictionary has one value, and each row is that."""
    folder = make_export(place / "made", {"people": MadeTable(PEOPLE, [three_rows()])})
    path = place_of(folder, "people", 0)
    value = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([bytes(value_bytes)]))
    columns = [pa.array([0] * rows, pa.int32()), pa.array([b"%d" % n for n in range(rows)]), value]
    table = pa.table(dict(zip(ROWS.names, columns, strict=True)))
    parquet.write_table(table, path, store_schema=False, **{"compression": "zstd"} | options)
    stamp(folder)
    return folder, path


IN_LITTLE_MEMORY = """
    import resource, sys
    import pyarrow, pyarrow.compute, pyarrow.parquet
    from pathlib import Path
    from tidegate.committers.exports.export_format import batches_of, read_manifest
    from tidegate.errors import CorruptError

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + 512 * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    folder = Path(sys.argv[1])
    manifest, _ = read_manifest(folder)
    try:
        print(sum(batch.num_rows for batch in batches_of(folder, "people", manifest.tables["people"])))
    except CorruptError as error:
        print(error)
"""


HOW = {
    "dictionary": (1_000, {}, "row 1"),
    "one page": (150, {"use_dictionary": False, "data_page_size": 2**31 - 1}, "bytes decompressed or more"),
    "prefixes": (
        150,
        {"use_dictionary": False, "column_encoding": {"value": "DELTA_BYTE_ARRAY"}},
        "in encoding 7, which no export has",
    ),
}


@pytest.mark.parametrize("how", HOW)
def test_a_file_that_unfolds_to_gigabytes_takes_little_memory_t49_t61(tmp_path, how):
    """4 GB from some kilobytes; asked for at once they were, and the machine was out of memory."""
    rows, options, why = HOW[how]
    folder, path = bomb(tmp_path, rows, **options)
    assert path.stat().st_size < 1_000_000
    code = [sys.executable, "-c", textwrap.dedent(IN_LITTLE_MEMORY), str(folder)]
    done = subprocess.run(code, capture_output=True, text=True, check=False)
    assert str(path) in done.stdout, done.stderr
    assert why in done.stdout


def test_a_page_that_says_another_size_than_the_metadata_is_believed_to_be_that_large(tmp_path, monkeypatch):
    """The metadata's sizes are the author's; those in front of each page are what is allocated."""
    folder, path = bomb(tmp_path, rows=1, value_bytes=100_000)
    content = bytearray(path.read_bytes())
    chunk = parquet.ParquetFile(path).metadata.row_group(0).column(2)
    page = parquet_pages.page_of(bytes(content[chunk.dictionary_page_offset :]))
    zigzag = lambda number: _varint(number * 2)  # noqa: E731 - as Thrift writes it
    at = content.index(zigzag(page.size), chunk.dictionary_page_offset)
    content[at : at + 3] = zigzag(2**20 - 1)[:3]
    path.write_bytes(content)
    stamp(folder)
    monkeypatch.setattr(parquet_pages, "CHUNK_BYTES_MAX", 500_000)
    assert chunk.total_uncompressed_size < 500_000
    refused(folder, "column value of a row group takes 1048575 bytes decompressed or more")


def _varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def test_pages_of_all_kinds_are_read(tmp_path):
    """Any file of Parquet that holds the rows: several row groups, pages and compressions."""
    rows = placed([(b"%d" % n, FIT) for n in range(5_000)])
    for number, options in enumerate(
        [
            {"data_page_version": "2.0"},
            {"compression": "none"},
            {"compression": "gzip", "row_group_size": 100, "data_page_size": 10},
            {"compression": "zstd", "use_dictionary": False, "write_page_checksum": True},
        ]
    ):
        folder = make_export(tmp_path / f"{number}" / "made", {"people": MadeTable(PEOPLE, [rows])})
        path = place_of(folder, "people", 0)
        parquet.write_table(parquet.read_table(path), path, **options)
        stamp(folder)
        assert imported(folder) == 1


@pytest.mark.parametrize("rows", [60, 2_000])
def test_rows_that_take_far_more_than_their_files_are_refused_before_a_namespace_is_made(tmp_path, rows):
    schema = TableSchema((Column("k", "string"),), (Column("v", "string"),))
    value = b'+{"v":"' + b"x" * 100_000 + b'"}'
    folder = one_table(tmp_path, [(b"%05d" % n, value) for n in range(rows)], schema)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert rows * len(value) > 300 * size
    refused(folder, "give the limit that they need")
    assert not (tmp_path / "wal").exists()
    assert not (tmp_path / "store").exists()
    driver = Coordinator(
        Endpoints("made", f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"),
        open_log(f"file://{tmp_path}/wal", "made"),
        open_store(f"sqlite://{tmp_path}/store", "made"),
        Options(key_groups=4),
    )
    if rows == 60:
        most = 2 * rows * len(value)
        assert import_rows(driver, folder, *read_whole(folder), bytes_max=most).version == 1
    driver.store.close()
