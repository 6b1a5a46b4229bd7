"""A store whose folder was lost and is created again: the errors of its holders at each moment of it."""

from __future__ import annotations

import shutil

import pytest

import tidegate
from support.cli import run
from support.places import silence_writer
from tidegate.errors import StoreLostError, StoreNotVerifiedError, TidegateError
from tidegate.sinks.sqlite.files import META, META_FILE, Files
from tidegate.sinks.sqlite.rows import Shards
from tidegate.testing.example import write_flights


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
    "no identity": lambda folder: (folder.mkdir(), Files(folder, "here", 1.0).make(META_FILE, META)),
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
