"""The example of the readers' tests: a store that is only read, and a writer of a store of its own."""

import pytest

import tidegate
from tidegate.options import Options
from tidegate.testing.example import Example, write_flights


@pytest.fixture(scope="module")
def flights(tmp_path_factory):
    """The example's three versions in files; tests only read here."""
    root = tmp_path_factory.mktemp("flights")
    store = f"sqlite://{root}/store"
    write_flights(f"file://{root}/wal", store)
    return store


@pytest.fixture
def gate(flights):
    with tidegate.connect(flights, namespace="flights") as gate:
        yield gate


@pytest.fixture
def writer(tmp_path):
    """A writer of a namespace of its own, in files."""
    options = Options(key_groups=2)
    example = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", options=options)
    yield example
    example.close()


@pytest.fixture
def in_memory(tmp_path):
    """A writer whose store looks while it reads, as the reference has it."""
    made = Example(f"memory://{tmp_path}", f"memory://{tmp_path}", "flights", options=Options(key_groups=8))
    yield made
    made.close()
