"""I12: a version that a client has kept is of one history; in another one it is refused at every door."""

import asyncio
import json
import re

import pytest
from typer.testing import CliRunner

import tidegate
import tidegate.aio
from support.histories import LAST, LATER, WAYS, Histories
from tidegate import VersionRef
from tidegate.cli import app
from tidegate.errors import ConfigError, VersionRegressedError, WaitTimeoutError
from tidegate.reader.mirror import mirror as mirrors

OTHER = r"version 6 of .* is of another history: .*: read a whole version again"


@pytest.fixture(autouse=True)
def _short_looks(monkeypatch):
    monkeypatch.setattr(mirrors, "LOOK_S", 0.02)
    monkeypatch.setattr(mirrors, "PAUSE_S", (0.02, 0.02))


@pytest.fixture
def histories(tmp_path):
    made = Histories(tmp_path)
    yield made
    made.close()


def connected(histories, name="live"):
    return tidegate.connect(histories.store, name, wal=histories.place.wal)


def kept(histories):
    """A version as a client keeps it: as text, outside its process."""
    with connected(histories) as gate, gate.snapshot() as snapshot:
        assert snapshot.version == LAST
        return str(snapshot.ref)


def tail(histories, *arguments, code=0, name="live"):
    options = [f"--store={histories.store}", f"--namespace={name}", "--json", *arguments]
    result = CliRunner().invoke(app, ["tail", *options], prog_name="tidegate")
    assert result.exit_code == code, result.output
    return result


# -- the reference itself ---------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "-1", "x", "1.5", "1:2:3:4", "9" * 30, ":u:d", "1 :u:d", "²:u:d"])
def test_text_that_is_no_version_is_refused(text):
    with pytest.raises(ConfigError, match="is no version"):
        VersionRef.parse(text)


def test_a_reference_is_compared_as_far_as_it_is_known():
    ref = VersionRef(6, "u", "d")
    assert [VersionRef.parse(text) for text in (str(ref), "6:d", "6")] == [
        ref,
        VersionRef(6, "", "d"),
        VersionRef(6),
    ]
    for same in (VersionRef(6, "u", "d"), VersionRef(6, "u"), VersionRef(7, "u", "x"), VersionRef(6)):
        ref.check(same, "here", ConfigError, "stop")
    for other in (VersionRef(6, "v", "d"), VersionRef(7, "v"), VersionRef(6, "u", "x")):
        with pytest.raises(ConfigError, match=r"here: version 6 .* is of another history: .*: stop$"):
            ref.check(other, "here", ConfigError, "stop")


# -- gates ------------------------------------------------------------------------------------------


def test_a_kept_version_is_read_and_waited_for_in_its_own_history(histories):
    ref = VersionRef.parse(kept(histories))
    with connected(histories) as gate:
        histories.write("old", LATER)
        assert gate.wait_for(ref, timeout=0) == LATER
        assert gate.diff(ref).counts()["aircraft"] == (2, 0, 0)
        assert [row.key for row in gate.changes(ref, "aircraft")] == ["old6"]
        with gate.snapshot(ref) as snapshot:
            assert snapshot.ref == ref
        with pytest.raises(WaitTimeoutError, match="version 9 of namespace flights was not visible"):
            gate.wait_for(VersionRef(LATER + 1, ref.uuid), timeout=0)


@pytest.mark.parametrize("way", WAYS)
def test_a_gate_refuses_a_version_of_another_history_i12(histories, way):
    """Red before: wait_for answered at once with version 8 of the new history."""
    ref = VersionRef.parse(kept(histories))
    histories.become(way)
    with connected(histories) as gate:
        assert gate.wait_for(LAST, timeout=0) == LATER  # a number alone is compared with nothing
        for ask in (
            lambda: gate.wait_for(ref, timeout=0),
            lambda: gate.snapshot(ref),
            lambda: gate.diff(ref).counts(),
            lambda: gate.changes(ref, "aircraft"),
        ):
            with pytest.raises(VersionRegressedError, match=OTHER):
                ask()
    assert [lease for lease in histories.place.driver.store.leases() if lease.version == LAST] == []


@pytest.mark.parametrize("way", WAYS)
def test_a_gate_on_an_event_loop_refuses_it_too_i12(histories, way):
    ref = VersionRef.parse(kept(histories))
    histories.become(way)

    async def ask():
        async with await tidegate.aio.connect(histories.store, "live") as gate:
            with pytest.raises(VersionRegressedError, match=OTHER):
                await gate.wait_for(ref, timeout=0)
            with pytest.raises(VersionRegressedError, match=OTHER):
                await gate.snapshot(ref)
            with pytest.raises(VersionRegressedError, match=OTHER):
                await gate.diff(ref).counts()

    asyncio.run(ask())


@pytest.mark.parametrize("way", ["remade", "restored", "other"])
def test_a_version_that_is_not_visible_yet_is_not_waited_for_in_another_namespace(histories, way):
    """It would become visible there, one day."""
    ref = VersionRef(LATER + 1, VersionRef.parse(kept(histories)).uuid)
    histories.become(way)
    with (
        connected(histories) as gate,
        pytest.raises(VersionRegressedError, match=r"version 9 .*another history"),
    ):
        gate.wait_for(ref, timeout=30)


# -- tidegate tail ----------------------------------------------------------------------------------


def test_tail_continues_after_the_line_that_ended_a_version(histories):
    lines = tail(histories, "--after", "0", "--limit", "6").stdout.splitlines()
    end = json.loads(lines[-1])
    ref = VersionRef(end["version"], end["uuid"], end["digest"])
    assert str(ref) == kept(histories)
    histories.write("old", LATER)
    for after in (str(ref), f"{LAST}:{ref.digest}"):
        found = tail(histories, "--after", after, "--limit", "2")
        assert re.findall(r"old\d", found.stdout) == ["old7", "old8"]
        assert found.stderr == ""


def test_tail_warns_of_a_number_alone(histories):
    found = tail(histories, "--after", "5", "--limit", "1")
    assert "warning: --after 5 is a number alone" in found.stderr


@pytest.mark.parametrize("way", WAYS)
def test_tail_refuses_to_continue_in_another_history_i12(histories, way):
    """Red before: it printed versions 7 and 8 of the new history."""
    ref = kept(histories)
    histories.become(way)
    refused = tail(histories, "--after", ref, "--limit", "2", code=12)
    assert re.search(OTHER, refused.stderr)
    assert refused.stdout == ""


# -- mirrors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["remade", "restored", "copies"])
def test_a_mirrors_file_is_not_continued_in_another_history_i12(histories, way, tmp_path):
    path = tmp_path / "mirror.db"
    with connected(histories, "flights") as gate:
        gate.mirror("aircraft", path=path).close()
    histories.become(way)
    with (
        connected(histories, "flights") as gate,
        pytest.raises((ConfigError, VersionRegressedError), match=r"or remove mirror.db|remove the file"),
        gate.mirror("aircraft", path=path) as mirror,
    ):
        mirror.wait_for(LATER, timeout=30)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("in_loop", [False, True])
def test_a_mirror_refuses_to_wait_for_a_version_of_another_history_i12(histories, way, in_loop):
    """By an alias, a mirror is read whole when another namespace is named: its numbers are others then."""
    ref = VersionRef.parse(kept(histories))
    histories.become(way)

    async def ask():
        async with (
            await tidegate.aio.connect(histories.store, "live") as gate,
            gate.mirror("aircraft") as mirror,
        ):
            assert await mirror.wait_for(LATER) == LATER
            await mirror.wait_for(ref, timeout=0)

    def ask_in_thread():
        with connected(histories) as gate, gate.mirror("aircraft") as mirror:
            assert mirror.wait_for(mirror.view().ref) == LATER
            mirror.wait_for(ref, timeout=0)

    with pytest.raises(VersionRegressedError, match=OTHER):
        asyncio.run(ask()) if in_loop else ask_in_thread()


def test_a_mirror_compares_the_version_that_it_moves_from(histories, monkeypatch):
    """The store is another one under the same uuid, with a larger number: nothing went back.

    Red before: the rows that the two histories do not share stayed in the mirror, without an error.
    """
    with connected(histories, "flights") as gate, gate.mirror("aircraft") as mirror:
        entry = gate._reader.entry

        def other(version):
            found = yield from entry(version)
            return (
                found
                if version > LAST
                else type(found)(
                    **{name: getattr(found, name) for name in found.__struct_fields__} | {"digest": "other"}
                )
            )

        monkeypatch.setattr(gate._reader, "entry", other)
        histories.write("old", LATER)
        with pytest.raises(VersionRegressedError, match=OTHER):
            mirror.wait_for(LATER, timeout=30)
