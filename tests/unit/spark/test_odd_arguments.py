"""Arguments of a wrong type and of any size: a sink is refused by a typed, short error that names one."""

import dataclasses
import inspect

import pytest

from support.odd_values import faults
from tidegate.errors import TidegateError
from tidegate.options import Options
from tidegate.spark import VersionedSink
from tidegate.spark.staging.declared import Derived

GIVEN = {"namespace": "n", "table": "t", "key": "k"}
OPTIONS = [field.name for field in dataclasses.fields(Options)]
ARGUMENTS = [
    name
    for name, parameter in inspect.signature(VersionedSink.__init__).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
]


def sink(root, **arguments):
    places = {"wal": f"memory://{root.name}", "store": f"memory://{root.name}"}
    made = VersionedSink(**{**GIVEN, **places, **arguments})
    made.close()


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option(name):
    def made(odd):
        try:
            Options(**{name: odd})
        except TidegateError as error:
            if name not in str(error) and "table name" not in str(error):
                raise AssertionError(f"not named: {error}") from None
            raise

    assert faults(made) == []


@pytest.mark.parametrize("name", [*ARGUMENTS, "ttl", "table_key_groups", "local_dir", "unknown"])
def test_an_argument_of_a_sink(tmp_path, name):
    assert faults(lambda odd: sink(tmp_path, **{name: odd})) == []


@pytest.mark.parametrize("name", ["wal_options", "store_options"])
@pytest.mark.parametrize("place", ["file", "sqlite", "kafka", "redis", "cassandra"])
def test_an_option_of_a_log_or_a_store(tmp_path, name, place):
    urls = {"wal": f"file://{tmp_path}/wal", "store": f"sqlite://{tmp_path}/store"}
    urls["wal" if place in ("file", "kafka") else "store"] = (
        f"{place}://{tmp_path}/x" if place in ("file", "sqlite") else f"{place}://127.0.0.1:1/x"
    )
    for option in ("timeout_s", "unknown", "protocol_version", "functions"):
        assert faults(lambda odd, option=option: sink(tmp_path, **urls, **{name: {option: odd}})) == []


@pytest.mark.parametrize("name", [*inspect.signature(Derived).parameters])
def test_an_argument_of_a_derived_table(name):
    given = {"name": "totals", "of": "t", "key": "k", "aggregates": {"n": "count"}}
    given = {
        argument: given[argument] for argument in inspect.signature(Derived).parameters if argument in given
    }
    assert faults(lambda odd: Derived(**given | {name: odd})) == []
