"""Namespaces of the example, for tests of commands."""

import types

import pytest

from support.cli import options_for
from tidegate.base import failpoints
from tidegate.errors import StoreUnavailableError
from tidegate.options import Options
from tidegate.testing.example import BATCHES, Example, write_flights


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))  # `new` remembers its file
    for name in ("STORE", "WAL", "NAMESPACE", "STORE_CONFIG", "WAL_CONFIG"):
        monkeypatch.delenv(f"TIDEGATE_{name}", raising=False)
    yield
    failpoints.arm(None)


@pytest.fixture(scope="module")
def flights(tmp_path_factory):
    """Options of the example's namespace in files; tests only read here."""
    root = tmp_path_factory.mktemp("flights")
    write_flights(f"file://{root}/wal", f"sqlite://{root}/store")
    return options_for(root)


@pytest.fixture
def stuck(tmp_path, monkeypatch):
    """A namespace with version 1 visible and version 2 decided, not applied: its options."""
    example = Example(
        f"file://{tmp_path}/wal",
        f"sqlite://{tmp_path}/store",
        options=Options(key_groups=2, apply_deadline_s=0.01),
    )
    example.write(BATCHES[0])

    def away(stamp, chunk):
        raise StoreUnavailableError("away")

    monkeypatch.setattr(example.driver.store, "apply", away)
    with pytest.raises(StoreUnavailableError):
        example.write(BATCHES[1])
    yield types.SimpleNamespace(options=options_for(tmp_path), driver=example.driver)
    example.close()
