"""A store whose folder was lost and is created again: the errors of its holders at each moment of it."""

from __future__ import annotations

import contextlib
import shutil

import pytest

import tidegate
from support.cli import run
from support.places import silence_writer
from tidegate.errors import CorruptError, StoreLostError, StoreNotVerifiedError, TidegateError
from tidegate.options import Options
from tidegate.sinks.sqlite.disk.files import Files
from tidegate.sinks.sqlite.disk.tables import META, META_FILE
from tidegate.sinks.sqlite.newest import compare
from tidegate.sinks.sqlite.rows import Shards
from tidegate.testing.example import BATCHES, Example, write_flights


@pytest.fixture
def held(tmp_path):
    wal, url = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
    write_flights(wal, url)
    silence_writer(tmp_path / "store")
    with tidegate.connect(url, "flights") as gate:
        gate.version()
        shutil.rmtree(tmp_path / "store" / "flights")
        yield gate, [f"--wal={wal}", f"--store={url}", "--namespace=flights"]


MOMENTS = {
    "no folder": lambda _: None,
    "an empty folder": lambda folder: folder.mkdir(),
    "an empty file": lambda folder: (folder.mkdir(), (folder / META_FILE).touch()),
    "no identity": lambda folder: (folder.mkdir(), Files(folder, "here", 1.0, compare).make(META_FILE, META)),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_is_not_made_yet_is_lost_and_not_damaged(held, tmp_path, moment):
    """Red before: mirrors and tails ended with CorruptError, whose advice was an old copy of the folder."""
    gate, options = held
    MOMENTS[moment](tmp_path / "store" / "flights")
    with pytest.raises(StoreLostError):
        gate.version()
    assert run("recover", *options).exit_code == 0
    assert gate.version() == gate.snapshot().version


def test_a_store_that_is_being_made_is_being_rebuilt(held, monkeypatch):
    """Red before: it showed version 0, which went back."""
    gate, options = held
    create, seen = Shards.create, []

    def looked_at(shards):
        for _ in range(2):
            with pytest.raises(TidegateError) as found:
                gate.version()
            seen.append(found.type)
            create(shards)

    with monkeypatch.context() as patch:
        patch.setattr(Shards, "create", looked_at)
        assert run("recover", *options).exit_code == 0
    assert seen == [StoreNotVerifiedError] * 2
    assert gate.version()


@pytest.mark.parametrize("lent", [META_FILE, "shard-00.sqlite"])
def test_a_connection_that_a_thread_uses_while_the_folder_is_made_again_is_not_kept(tmp_path, lent):
    """Red before: the next reads were from the file that was removed, and had rows of its last version."""
    wal, url = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
    with contextlib.closing(Example(wal, url, options=Options(key_groups=1))) as writer:
        writer.write(BATCHES[0])
    silence_writer(tmp_path / "store")
    with tidegate.connect(url, "flights") as gate:
        gate.table("airports").get("EWR")
        with gate._reader.store._files.connection(lent):
            shutil.rmtree(tmp_path / "store" / "flights")
            assert run("recover", f"--wal={wal}", f"--store={url}", "--namespace=flights").exit_code == 0
            gate.version()
        with contextlib.closing(Example(wal, url, options=Options(key_groups=1))) as writer:
            writer.write({"airports": {"EWR": {"departures": 99, "delay": 0.0}}})
        assert gate.version() == 2
        assert gate.table("airports").get("EWR") == {"departures": 99, "delay": 0.0}


def test_a_file_that_is_put_in_another_ones_place_is_compared_before_it_is_read(tmp_path):
    """Red before: a shard that was removed, or of an older copy, was noticed by handles that open later."""
    wal, url = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
    with contextlib.closing(Example(wal, url, options=Options(key_groups=1))) as writer:
        writer.write(BATCHES[0])
    shard = tmp_path / "store" / "flights" / "shard-00.sqlite"
    shutil.copy(shard, tmp_path / "older")
    with contextlib.closing(Example(wal, url, options=Options(key_groups=1))) as writer:
        writer.write(BATCHES[1])
    with tidegate.connect(url, "flights") as gate:
        assert gate.table("airports").get("EWR")
        (tmp_path / "older").rename(shard)
        with pytest.raises(CorruptError, match="it lost its end"):
            gate.table("airports").get("EWR")
        shard.unlink()
        with pytest.raises(CorruptError, match="is missing"):
            gate.table("airports").get("EWR")
