"""A shard file that lost its ``-wal`` is refused, wherever the visible version is newer (I10)."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3

import pytest
from typer.testing import CliRunner

import tidegate
from tidegate.cli import app
from tidegate.committers.steps.retire import retire_up_to
from tidegate.errors import CorruptError
from tidegate.options import Options
from tidegate.testing.example import BATCHES, Example

OPTIONS = Options(key_groups=2, keep_versions=1)


@pytest.fixture
def place(tmp_path):
    """A writer of three versions that still runs: its files are beside their ``-wal``."""
    example = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", options=OPTIONS)
    for rows in BATCHES:
        example.write(rows)
    yield example
    example.close()


def checkpoint(folder, *names):
    for name in names:
        with contextlib.closing(sqlite3.connect(folder / f"{name}.sqlite")) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


def copied_without_wal(tmp_path):
    """Copy the files that a careless person copies."""
    (tmp_path / "copy" / "flights").mkdir(parents=True)
    for file in (tmp_path / "store" / "flights").glob("*.sqlite"):
        shutil.copy(file, tmp_path / "copy" / "flights")
    return f"sqlite://{tmp_path}/copy"


def values(url):
    with tidegate.connect(url, "flights") as gate:
        return gate.version(), gate.table("airports").get("EWR")


@pytest.mark.parametrize("lost", ["shard-00", "shard-01"])
def test_a_shard_that_was_copied_without_its_wal_is_refused_by_readers_writers_and_verify(
    place, tmp_path, lost
):
    """The visible version was read with rows of older ones, or with none."""
    folder = tmp_path / "store" / "flights"
    checkpoint(folder, *({"meta", "shard-00", "shard-01"} - {lost}))
    url = copied_without_wal(tmp_path)
    with pytest.raises(CorruptError, match=rf"{lost}\.sqlite.*sealed there: it lost its end"):
        values(url)
    with pytest.raises(CorruptError, match="it lost its end"):
        Example(f"file://{tmp_path}/wal", url, options=OPTIONS)
    words = [f"--store={url}", f"--wal=file://{tmp_path}/wal", "--namespace=flights"]
    done = CliRunner().invoke(app, ["verify", *words])
    assert done.exit_code == CorruptError.exit_code, done.output
    assert "it lost its end" in done.output


@pytest.mark.parametrize("retired", [False, True])
def test_a_whole_copy_is_read(place, tmp_path, retired):
    driver = place.driver
    if retired:
        retire_up_to(driver.log, driver.store, driver.folded, OPTIONS, lambda: False)
        driver.store.vacuum()
    checkpoint(tmp_path / "store" / "flights", "meta", "shard-00", "shard-01")
    assert values(copied_without_wal(tmp_path)) == values(f"sqlite://{tmp_path}/store")


def test_a_store_of_an_older_release_has_no_note_and_is_read(place, tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "store" / "flights" / "meta.sqlite")) as connection:
        connection.execute("DROP TABLE newest")
        connection.commit()
    assert values(f"sqlite://{tmp_path}/store")[0] == 3
    place.write(BATCHES[1])
    assert values(f"sqlite://{tmp_path}/store")[0] == 4
