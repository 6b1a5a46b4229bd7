"""A table with fewer key groups than its namespace: log, stores, readers, operators' work on it."""

import asyncio
import random

import msgspec
import pytest

import tidegate
import tidegate.aio
from support.cli import done, done_json
from support.places import rows_by_table
from tidegate.committers.apply.apply import read_manifest
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.exports import export_format
from tidegate.committers.exports.export import export
from tidegate.committers.exports.import_rows import import_rows, read_whole
from tidegate.committers.operations.restore import restore
from tidegate.committers.operations.restore_plan import plan_restore
from tidegate.committers.operations.verify import verify
from tidegate.errors import ConfigError, CorruptError, TidegateError
from tidegate.keys.groups import key_group
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.testing.arrow_barrier import BYTES_SCHEMA
from tidegate.testing.example import Example
from tidegate.values.decode import values_of
from tidegate.wal.fold import View, fold_all
from tidegate.wal.manifest import encode_manifest
from tidegate.wal.open_log import open_log
from tidegate.wal.record import TableAt, TableSchema

KEY_GROUPS, OF_TABLE = 12, 3
STRIDE = KEY_GROUPS // OF_TABLE
AIRPORTS = {f"A{number}": {"departures": number, "delay": number / 2} for number in range(60)}


class Place:
    """A namespace in files whose table ``airports`` has three of its twelve key groups."""

    def __init__(self, folder, key_groups=KEY_GROUPS, **of_table):
        self.wal, self.store = f"file://{folder}/wal", f"sqlite://{folder}/store"
        self.key_groups, self.of_table = key_groups, of_table
        self.example = self.opened()

    def opened(self):
        options = Options(
            key_groups=self.key_groups, keep_versions=100, table_key_groups=self.of_table or None
        )
        return Example(self.wal, self.store, options=options)

    def again(self, **of_table):
        """Open a new driver with these options."""
        self.example.close()
        self.of_table = of_table
        self.example = self.opened()

    def write(self, rows, **how):
        return self.example.write(rows, **how)

    def manifest(self, version):
        driver = self.example.driver
        (fact,) = (one for one in driver.folded.recent if one.version == version)
        return read_manifest(driver.log, fact)

    def groups(self, version, table="airports"):
        return {group for group, counts in self.manifest(version).counts().items() if table in counts}

    def at(self, table="airports"):
        return self.example.driver.folded.tables[table]

    def content(self, version=None):
        return rows_by_table(self.store, version=version)


@pytest.fixture
def place(tmp_path):
    made = Place(tmp_path, airports=OF_TABLE)
    yield made
    made.example.close()


def found_wrong(place):
    report = verify(open_log(place.wal, "flights"), open_store(place.store, "flights"))
    return report.findings


def test_a_table_has_the_key_groups_that_it_was_made_with_for_life(place):
    place.write({"airports": AIRPORTS, "aircraft": {"N1": {"carrier": "UA", "flights": 1}}})
    assert place.groups(1) == set(range(0, KEY_GROUPS, STRIDE))
    assert place.at() == TableAt(place.at().schema_id, stride=STRIDE)
    assert place.at("aircraft").stride is msgspec.UNSET
    place.again()  # the option is needed only while the table is made
    place.write({"airports": {"A7": None, "B1": {"departures": 7, "delay": 0.5}}})
    assert place.groups(2) <= set(range(0, KEY_GROUPS, STRIDE))
    assert place.at().stride == STRIDE
    expected = {**AIRPORTS, "B1": {"departures": 7, "delay": 0.5}}
    del expected["A7"]
    assert place.content()["airports"] == expected
    with tidegate.connect(place.store, namespace="flights") as gate:
        airports = gate.table("airports")
        assert airports.get_many(AIRPORTS) == {key: expected[key] for key in AIRPORTS if key != "A7"}
        assert [airports.get(key) for key in ("A7", "A8", "B1")] == [None, expected["A8"], expected["B1"]]
        differing = {change.key: change.after for change in gate.diff(1, 2)}
        assert differing == {"A7": None, "B1": expected["B1"]}
    assert found_wrong(place) == []


def test_a_reader_of_an_event_loop_and_a_renamed_column(place):
    place.write({"airports": AIRPORTS})

    async def read():
        async with await tidegate.aio.connect(place.store, namespace="flights") as gate:
            airports = gate.table("airports")
            return await airports.get_many(AIRPORTS), await airports.get("A3")

    assert asyncio.run(read()) == (AIRPORTS, AIRPORTS["A3"])
    place.example.close()
    where = [f"--store={place.store}", f"--wal={place.wal}", "--namespace=flights", "--force"]
    done("schema", "rename", "airports", "delay", "late", *where)
    place.again()
    assert place.at().stride == STRIDE
    expected = {key: {"departures": row["departures"], "late": row["delay"]} for key, row in AIRPORTS.items()}
    assert place.content()["airports"] == expected


def test_a_scan_of_one_key_group_in_threads_and_in_an_event_loop(place):
    place.write(
        {"airports": AIRPORTS, "aircraft": {f"N{n}": {"carrier": "UA", "flights": n} for n in range(60)}}
    )
    rows, met = {"airports": {}, "aircraft": {}}, {"airports": set(), "aircraft": set()}

    async def in_a_loop(table, group):
        async with await tidegate.aio.connect(place.store, namespace="flights") as gate:
            return await gate.table(table).scan(key_group=group).to_arrow()

    with tidegate.connect(place.store, namespace="flights") as gate, gate.snapshot() as snapshot:
        for table, found in rows.items():
            for group in range(gate.key_groups):
                part = dict(snapshot.table(table).scan(key_group=group))
                assert not part.keys() & found.keys()
                found.update(part)
                met[table] |= {group} if part else set()
                also = gate.table(table).scan(group).to_arrow()
                assert also.num_rows == len(part)
                assert asyncio.run(in_a_loop(table, group)).equals(also)
            assert found == dict(snapshot.table(table).scan())
        assert met == {"airports": place.groups(1), "aircraft": place.groups(1, "aircraft")}
        for wrong in (-1, KEY_GROUPS, True, "1"):
            scan = gate.table("airports").scan(key_group=wrong)
            with pytest.raises(
                ConfigError, match=rf"key_group is {wrong!r}; .* has the key groups 0 to 11: "
            ):
                next(scan)
            assert len(gate._reader.store.leases()) == 1  # the snapshot's
            with pytest.raises(ConfigError, match=f"key_group is {wrong!r}; "):
                asyncio.run(in_a_loop("airports", wrong))


def test_another_number_for_a_table_that_is_there_is_refused(place):
    place.write({"airports": AIRPORTS})
    place.again(airports=4)
    before = [entry.content for entry in place.example.driver.log.decisions()]
    with pytest.raises(
        ConfigError, match=r"airports has 3 key groups, and table_key_groups names 4: .*fixed"
    ):
        place.write({"aircraft": {"N1": {"carrier": "UA", "flights": 1}}})
    assert [entry.content for entry in place.example.driver.log.decisions()] == before


def test_status_names_the_number_of_each_table(place):
    place.write({"airports": AIRPORTS, "aircraft": {"N1": {"carrier": "UA", "flights": 1}}})
    told = done_json("status", f"--store={place.store}", f"--wal={place.wal}", "--namespace=flights")
    assert {table["name"]: table["key_groups"] for table in told["tables"]} == {"airports": 3, "aircraft": 12}


@pytest.mark.parametrize("known", [True, False])
def test_a_number_that_is_no_divisor_is_refused_before_the_first_batch(tmp_path, known):
    words = (
        "table_key_groups of table airports is 5, and the namespace has 12 key groups: it must be a divisor"
    )
    if known:
        with pytest.raises(ConfigError, match=words):
            Options(key_groups=12, table_key_groups={"airports": 5})
        return
    Place(tmp_path).example.close()
    with pytest.raises(ConfigError, match=words):
        Example(
            f"file://{tmp_path}/wal",
            f"sqlite://{tmp_path}/store",
            options=Options(table_key_groups={"airports": 5}),
        )


@pytest.mark.parametrize(
    "value,words",
    [
        (3, "must be a number per table"),
        ({"a b": 1}, "table name 'a b' is not allowed"),
        ({"_local": 1}, "a table of tidegate's own has the namespace's"),
        ({"t": 0}, "table_key_groups of table t is 0"),
        ({"t": True}, "table_key_groups of table t is True"),
    ],
)
def test_options_that_are_no_numbers_per_table_are_refused(value, words):
    with pytest.raises(ConfigError, match=words):
        Options(table_key_groups=value)


def test_a_table_that_is_dropped_and_made_again_may_have_another_number(place):
    place.write({"airports": AIRPORTS})
    place.write({}, drops=frozenset({"airports"}))
    place.again(airports=4)
    place.write({"airports": AIRPORTS})
    assert place.groups(3) <= {0, 3, 6, 9}
    assert place.content()["airports"] == place.content(1)["airports"] == AIRPORTS
    with (
        tidegate.connect(place.store, namespace="flights") as gate,
        pytest.raises(ConfigError, match=r"airports of version 3 was made again, with another number"),
    ):
        list(gate.diff(1, 3))
    driver = place.example.driver
    with pytest.raises(ConfigError, match=r"made again with 4: .*`txn.drop_table`, and run this again; or"):
        plan_restore(driver, 1)
    place.write({}, drops=frozenset({"airports"}))
    version = restore(driver, plan_restore(driver, 1)).made
    assert place.groups(version) == {0, 4, 8}
    assert place.content()["airports"] == AIRPORTS
    assert found_wrong(place) == []


def test_a_restore_brings_a_dropped_table_back_with_its_key_groups(place):
    place.write({"airports": AIRPORTS})
    place.write({}, drops=frozenset({"airports"}))
    place.again()
    version = restore(place.example.driver, plan_restore(place.example.driver, 1)).made
    assert place.at().stride == STRIDE
    assert place.groups(version) == {0, 4, 8}
    assert place.content()["airports"] == AIRPORTS
    assert found_wrong(place) == []


def test_the_deletes_that_a_table_remembers_are_in_its_key_groups(place):
    """They are staged with the table's rows, whose key groups they take."""
    for table in ("aircraft", "airports"):
        place.example.schemas[f"_deleted.{table}"] = place.example.schemas[table]
    gone = {"N1": {"carrier": "UA", "flights": 1}}
    place.write({"aircraft": gone, "_deleted.aircraft": gone, "airports": AIRPORTS})
    assert place.at("_deleted.aircraft").apart == 1
    place.again()
    place.example.schemas["_deleted.airports"] = place.example.schemas["airports"]
    place.write({"_deleted.airports": AIRPORTS})
    assert place.at("_deleted.airports").stride == STRIDE
    assert place.content()["_deleted.airports"] == AIRPORTS


@pytest.mark.parametrize("key_groups,stride", [(12, 4), (24, 8), (3, None), (8, None)])
def test_an_export_is_imported_with_the_same_number_if_it_divides(place, tmp_path, key_groups, stride):
    place.write({"airports": AIRPORTS, "aircraft": {"N1": {"carrier": "UA", "flights": 1}}})
    store = open_store(place.store, "flights")
    folder = tmp_path / "export"
    export(store, store.identity(), 1, folder)
    manifest, digest = read_whole(folder)
    assert (manifest.format, manifest.tables["airports"].stride) == (1, STRIDE)
    other = Endpoints("copy", f"file://{tmp_path}/copy", f"sqlite://{tmp_path}/copy-store")
    driver = Coordinator(
        other, open_log(other.wal, "copy"), open_store(other.store, "copy"), Options(key_groups=key_groups)
    )
    import_rows(driver, folder, manifest, digest)
    assert (driver.folded.tables["airports"].stride or None) == stride
    assert rows_by_table(other.store, "copy") == place.content()


def test_an_import_into_a_table_that_is_there_takes_its_key_groups(place, tmp_path):
    place.write({"airports": AIRPORTS})
    store = open_store(place.store, "flights")
    export(store, store.identity(), 1, tmp_path / "export")
    other = Place(tmp_path / "other", airports=6)
    other.write({"airports": {"Z": {"departures": 0, "delay": 0.0}}})
    driver = other.example.driver
    other.example.close()
    again = Coordinator(
        driver.endpoints, open_log(other.wal, "flights"), open_store(other.store, "flights"), Options()
    )
    manifest, digest = read_whole(tmp_path / "export")
    import_rows(again, tmp_path / "export", manifest, digest)
    assert again.folded.tables["airports"].stride == 2
    assert rows_by_table(other.store)["airports"] == AIRPORTS


def test_an_export_of_other_key_groups_is_corrupt(place, tmp_path):
    place.write({"airports": AIRPORTS})
    store, folder = open_store(place.store, "flights"), tmp_path / "export"
    export(store, store.identity(), 1, folder)
    path = folder / export_format.MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"stride": 4', b'"stride": 6'))
    manifest, _ = read_whole(folder)
    with pytest.raises(CorruptError, match="its key group is not"):
        list(export_format.batches_of(folder, "airports", manifest.tables["airports"], manifest.key_groups))
    path.write_bytes(path.read_bytes().replace(b'"stride": 6', b'"stride": 5'))
    with pytest.raises(CorruptError, match="it has the stride 5, and there are 12 key groups"):
        read_whole(folder)


# -- readers that know no stride -------------------------------------------------------------------


def test_schemas_of_such_tables_have_a_format_that_earlier_readers_refuse(place):
    """Their readers raise: value format 'grouped_json' is not known to this release; upgrade it."""
    place.write({"airports": AIRPORTS})
    (schema,) = open_store(place.store, "flights").schemas().values()
    assert msgspec.json.decode(msgspec.json.encode(schema))["value_format"] == "grouped_json"
    assert (schema.value_format, schema.grouped(1).stored_format) == ("json", "json")
    assert schema.grouped(1).schema_id == place.example.schemas["airports"].schema_id
    assert values_of(schema).decode(b'{"departures":7,"delay":0.5}') == {"departures": 7, "delay": 0.5}
    twice = msgspec.structs.replace(schema, stored_format="grouped_grouped_json")
    with pytest.raises(ConfigError, match="value format 'grouped_json' is not known"):
        values_of(twice)
    assert TableSchema(BYTES_SCHEMA.key, BYTES_SCHEMA.value, "bytes").schema_id == BYTES_SCHEMA.schema_id


def test_the_log_alone_has_the_strides(place):
    place.write({"airports": AIRPORTS})
    state = fold_all(View(), open_log(place.wal, "flights").decisions()).state
    assert state.tables["airports"].apart == STRIDE


# -- random batches --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_random_batches_at_changing_parallelism_leave_the_rows_of_a_plain_table(tmp_path, seed):
    chance = random.Random(seed)
    place, plain = Place(tmp_path / "a", airports=chance.choice([1, 2, 3, 4, 6])), Place(tmp_path / "b")
    for version in range(1, 9):
        rows = {
            chance.choice(list(AIRPORTS)): chance.choice([None, {"departures": version, "delay": 0.5}])
            for _ in range(30)
        }
        starts = frozenset({"airports"}) if chance.random() < 0.2 else frozenset()
        for each in (place, plain):
            each.write({"airports": rows}, starts=starts)
        assert place.content() == plain.content()
        if chance.random() < 0.3:
            place.again()
    assert place.groups(8) <= set(range(0, KEY_GROUPS, place.at().apart))
    assert found_wrong(place) == []


def test_a_manifest_with_rows_in_a_foreign_key_group_is_not_written(place):
    place.write({"airports": AIRPORTS})
    manifest = place.manifest(1)
    assert {key_group(key.encode(), KEY_GROUPS) % STRIDE for key in AIRPORTS} != {0}
    ats = {"airports": msgspec.structs.replace(place.at(), stride=6)}
    wrong = msgspec.structs.replace(manifest, table_schemas=ats)
    with pytest.raises(TidegateError, match="no multiple of its stride"):
        encode_manifest(wrong)
    ats = {"airports": msgspec.structs.replace(place.at(), stride=5)}
    with pytest.raises(TidegateError, match="has the stride 5, and there are 12 key groups"):
        encode_manifest(msgspec.structs.replace(manifest, table_schemas=ats))
    plain = {"airports": msgspec.structs.replace(place.at(), stride=msgspec.UNSET)}
    with pytest.raises(TidegateError, match="values of format grouped_json"):
        encode_manifest(msgspec.structs.replace(manifest, table_schemas=plain))
