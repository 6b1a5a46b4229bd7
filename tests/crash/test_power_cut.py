"""Power cuts: the disk's model, a sample of the sweep (``make power-cuts``), and that the sweep can fail.

The sweep needs strace, so it is in ``make full`` only; what syncs what is tested in tests/unit for itself.
"""

import os
import re

import pytest

from crash.power import run, trace
from crash.power.disk import LOSSES, SECTOR_BYTES, Disk, Op, put
from crash.sweep.check import SweepError
from crash.sweep.run import BATCHES, Place, working_folder

SEED = int(os.environ.get("TIDEGATE_SEED", "0"))


def disk(*ops):
    made = Disk()
    for op in ops:
        made.do(Op(*op))
    return made


def left(made, loss):
    return {path: content for path, content in made.left(loss).items() if content is not None}


# -- the disk -----------------------------------------------------------------------------------------


def test_what_was_synced_with_its_name_is_there_whatever_is_lost():
    made = disk(("make", "a"), ("write", "a", 0, b"content"), ("sync", "a"), ("sync", "."))
    assert all(made.left(loss) == {"a": b"content"} for loss in LOSSES)


def test_a_file_whose_folder_was_not_synced_has_no_name():
    made = disk(("make", "a"), ("write", "a", 0, b"content"), ("sync", "a"))
    assert left(made, "lost") == left(made, "content") == {}
    assert left(made, "kept") == left(made, "names") == {"a": b"content"}


def test_a_file_that_was_not_synced_is_empty_or_zeros():
    made = disk(("make", "a"), ("sync", "."), ("write", "a", 2, b"content"))
    assert left(made, "names") == {"a": b""}
    assert left(made, "zeros") == {"a": bytes(9)}
    assert left(made, "kept") == {"a": b"\0\0content"}


def test_a_rename_is_one_step():
    made = disk(
        ("make", "a"), ("write", "a", 0, b"new"), ("make", "b"), ("sync", "."), ("rename", "a", 0, b"", "b")
    )
    assert left(made, "lost") == {"a": b"", "b": b""}
    assert left(made, "content") == {"a": b"new", "b": b""}
    assert left(made, "names") == {"b": b""}
    assert left(made, "kept") == {"b": b"new"}


def test_a_file_that_was_removed_is_back_until_its_folder_is_synced():
    made = disk(("make", "a"), ("write", "a", 0, b"x"), ("sync", "a"), ("sync", "."), ("unlink", "a"))
    assert left(made, "lost") == {"a": b"x"}
    made.do(Op("sync", "."))
    assert left(made, "lost") == {}


def test_a_file_keeps_its_content_when_it_gets_another_name():
    made = disk(
        ("make", "a"), ("write", "a", 0, b"x"), ("rename", "a", 0, b"", "b"), ("sync", "b"), ("sync", ".")
    )
    assert left(made, "lost") == {"b": b"x"}


def test_a_size_that_was_not_synced_is_the_old_one():
    made = disk(("make", "a"), ("write", "a", 0, b"content"), ("sync", "a"), ("sync", "."), ("size", "a", 3))
    assert left(made, "lost") == {"a": b"content"}
    assert left(made, "kept") == left(made, "zeros") == {"a": b"con"}


def test_of_a_write_some_sectors_may_be_lost_and_others_not():
    content = b"x" * (3 * SECTOR_BYTES)
    made = disk(("make", "a"), ("sync", "."), ("write", "a", 100, content))
    found = {made.left("some", seed)["a"] for seed in range(60)}
    with_holes = [one for one in found if b"\0" in one[100:] and len(one) == 100 + len(content)]
    assert b"" in found
    assert bytes(100) + content in found
    assert with_holes
    assert all(one[100:SECTOR_BYTES].strip(b"\0") in (b"", b"x" * 412) for one in with_holes)


def test_of_a_folder_s_changes_the_first_ones_last():
    made = disk(("make", "a"), ("make", "b"), ("make", "c"))
    found = {tuple(made.left("some", seed)) for seed in range(40)}
    assert found == {(), ("a",), ("a", "b"), ("a", "b", "c")}


@pytest.mark.parametrize(
    "op",
    [("write", "a", 0, b"x"), ("rename", "a", 0, b"", "b"), ("unlink", "a"), ("sync", "a"), ("make", "f/a")],
)
def test_a_change_of_what_is_not_there_is_refused(op):
    with pytest.raises(KeyError):
        disk(op)


def test_a_rename_into_another_folder_is_not_modelled():
    with pytest.raises(ValueError, match="not modelled"):
        disk(("folder", "f"), ("make", "a"), ("rename", "a", 0, b"", "f/a"))


def test_what_is_left_can_be_made(tmp_path):
    made = disk(("folder", "f"), ("make", "f/a"), ("write", "f/a", 0, b"x"), ("make", "b"))
    put(made.left("kept"), tmp_path)
    assert (tmp_path / "f" / "a").read_bytes() == b"x"
    assert (tmp_path / "b").read_bytes() == b""


# -- the trace ----------------------------------------------------------------------------------------


def hexed(text):
    return "".join(f"\\x{byte:02x}" for byte in text.encode())


def traced(*lines):
    """The changes below /place of a trace; paths and content stand in it between braces."""
    return list(
        trace.Trace("/place").ops(
            "7 " + re.sub(r"\{(.*?)\}", lambda found: hexed(found[1]), line) + "\n" for line in lines
        )
    )


def test_calls_become_changes():
    assert traced(
        'mkdir("{/place/f}", 0777) = 0',
        'openat(AT_FDCWD<{/home}>, "{/place/f/a}", O_RDWR|O_CREAT, 0666) = 3<{/place/f/a}>',
        'write(3<{/place/f/a}>, "{ab}", 2) = 2',
        'write(3<{/place/f/a}>, "{cd}", 2) = 1',
        "lseek(3<{/place/f/a}>, 1, SEEK_SET) = 1",
        'write(3<{/place/f/a}>, "{X}", 1) = 1',
        'pwrite64(3<{/place/f/a}>, "{Y}", 1, 9) = 1',
        "fsync(3<{/place/f/a}>) = 0",
        "ftruncate(3<{/place/f/a}>, 4) = 0",
        'rename("{/place/f/a}", "{/place/f/b}") = 0',
        "fdatasync(4<{/place}>) = 0",
        'unlink("{/place/f/b}") = 0',
        'write(1<{pipe}>, "{told}", 4) = 4',
    ) == [
        Op("folder", "f"),
        Op("make", "f/a"),
        Op("write", "f/a", 0, b"ab"),
        Op("write", "f/a", 2, b"c"),
        Op("write", "f/a", 1, b"X"),
        Op("write", "f/a", 9, b"Y"),
        Op("sync", "f/a"),
        Op("size", "f/a", 4),
        Op("rename", "f/a", target="f/b"),
        Op("sync", "."),
        Op("unlink", "f/b"),
        Op("said", content=b"told"),
    ]


def test_what_is_elsewhere_or_failed_or_is_shared_memory_is_no_change():
    assert not traced(
        'mkdir("{/elsewhere}", 0777) = 0',
        'mkdir("{/place/f}", 0777) = -1 EEXIST (File exists)',
        'openat(AT_FDCWD<{/home}>, "{/place/a-shm}", O_RDWR|O_CREAT, 0666) = 3<{/place/a-shm}>',
        "ftruncate(3<{/place/a-shm}>, 4) = 0",
        'pwrite64(5<{/place/gone}>(deleted), "{x}", 1, 0) = 1',
        "+++ exited with 0 +++",
    )


def test_a_call_that_another_thread_interrupts_counts_when_it_returns():
    assert traced(
        'mkdir("{/place/f}", 0777 <unfinished ...>',
        'write(1<{pipe}>, "{told}", 4) = 4',
        "<... mkdir resumed>) = 0",
    ) == [Op("said", content=b"told"), Op("folder", "f")]


@pytest.mark.parametrize(
    "call", ["writev(3<{/place/a}>, [{}], 1) = 1", "fallocate(3<{/place/a}>, 0, 0, 9) = 0"]
)
def test_a_call_that_is_not_modelled_is_refused(call):
    with pytest.raises(SweepError, match="is not modelled"):
        traced(call)


def test_without_strace_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SweepError, match="install it"):
        trace.record([], tmp_path)


# -- the sweep ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ops(tmp_path_factory):
    return run.trace(tmp_path_factory.mktemp("traced") / "place")


def wrong_of(chosen, ops):
    with working_folder() as folder:
        return [result for result in run.sweep(chosen, ops, folder) if result.wrong]


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_a_power_cut_takes_nothing_that_was_told_i1_i3_i4_i5_i7_i11(ops, loss):
    chosen = [cut for cut in run.cuts(ops, SEED) if cut.loss == loss][:: 1 if loss == "lost" else 20]
    assert len(chosen) > 5
    assert not wrong_of(chosen, ops)


@pytest.mark.slow
def test_a_power_cut_with_versions_in_flight_takes_nothing_either_i1_i4_i11(tmp_path):
    """Several versions are retired at once: what the first ones dropped has to be on disk, too."""
    ops = run.trace(tmp_path / "place", in_flight=2)
    chosen = [cut for cut in run.cuts(ops, SEED) if cut.loss == "lost"]
    with working_folder() as folder:
        found = list(run.sweep(chosen, ops, folder, in_flight=2))
    assert [result for result in found if result.wrong] == []


def without_syncs(ops, ending):
    """As if nobody had synced these files."""
    return [op for op in ops if not (op.kind == "sync" and op.path.endswith(ending))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "ending",
    [
        "wal/crash/decisions.log",
        ".seg",
        "wal/crash/changelog",
        "store/crash/meta.sqlite-wal",
        "wal/crash",
        "store/crash",
    ],
)
def test_a_sync_that_is_missing_is_found(ops, ending):
    """Else the sweep would show nothing."""
    broken = without_syncs(ops, ending)
    assert len(broken) < len(ops)
    chosen = [cut for cut in run.cuts(broken) if cut.loss == "lost"]
    assert wrong_of(chosen, broken)


@pytest.mark.slow
def test_a_trace_that_explains_less_than_there_is_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "record", lambda *given: trace.record(*given)[:-20])
    with pytest.raises(SweepError, match="does not explain these files"):
        run.trace(tmp_path / "place")


@pytest.mark.slow
def test_a_driver_that_fails_under_strace_is_told(tmp_path):
    folder = tmp_path / "place"
    folder.mkdir()
    (folder / "wal").write_text("no folder")
    with pytest.raises(SweepError, match="ended with"):
        trace.record([*Place(folder).arguments, "--batches", str(BATCHES)], folder)


@pytest.mark.slow
def test_the_command_runs_one_case(capsys):
    assert run.main(["--only", "lost@400", "--way", "restart"]) == 0
    assert "1 power cuts, 1 finished, 0 wrong" in capsys.readouterr().out
