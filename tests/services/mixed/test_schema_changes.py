"""A table's columns change on real servers, while readers hold versions from before."""

import pytest

import tidegate
from services.support.in_loop import InLoop
from services.support.workloads.random_versions import writer_on
from tidegate.committers.rename_column import rename_column
from tidegate.wal.record import Column, TableSchema

WIDE = TableSchema((Column("tailnum", "string"),), (Column("carrier", "string"), Column("flights", "bigint")))
BIG = 2**40


@pytest.fixture(params=["redis", "cassandra_tables"])
def writer(request, tmp_path):
    server = request.getfixturevalue(request.param)
    example = writer_on(server if isinstance(server, str) else server.url, tmp_path)
    yield example
    example.driver.store.drop()
    example.close()


def test_readers_of_each_version_find_its_columns(writer):
    where = writer.driver.endpoints
    writer.write({"aircraft": {"N1": {"carrier": "UA", "flights": 1}, "N2": {"carrier": "UA", "flights": 2}}})
    with tidegate.connect(where.store, where.namespace) as gate, gate.snapshot() as before:
        table = gate.table("aircraft")
        assert table.get("N2") == {"carrier": "UA", "flights": 2}
        writer.schemas["aircraft"] = WIDE
        writer.write({"aircraft": {"N2": {"carrier": "UA", "flights": BIG}}})
        assert table.get("N2") == {"carrier": "UA", "flights": BIG}
        assert rename_column(writer.driver, "aircraft", "carrier", "airline").version == 3
        after = {"N1": {"airline": "UA", "flights": 1}, "N2": {"airline": "UA", "flights": BIG}}
        assert table.get_many(["N1", "N2"]) == after == dict(table.scan())
        assert before.table("aircraft").get("N2") == {"carrier": "UA", "flights": 2}
        with gate.snapshot(version=2) as between:
            assert between.table("aircraft").get("N2") == {"carrier": "UA", "flights": BIG}
    with InLoop(where.store, where.namespace) as other:
        assert other.table("aircraft").get_many(["N1", "N2"]) == after
