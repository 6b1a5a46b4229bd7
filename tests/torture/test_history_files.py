import doctest
import errno
import os
import threading
from pathlib import Path

import pytest

from tidegate.errors import ConfigError, CorruptError
from tidegate.torture.history import events, files
from tidegate.torture.history.files import Recorder, read_file, read_history


def test_the_examples_are_right():
    assert doctest.testmod(files).failed == 0


def looked(version):
    return events.Looked(client=1, version=version, began=Recorder.now())


def versions_of(lines):
    return [line.event.version for line in lines if isinstance(line.event, events.Looked)]


def test_files_are_merged_by_time(tmp_path):
    with Recorder(tmp_path, "b", "reader") as one, Recorder(tmp_path, "a", "reader") as other:
        for version in range(6):
            (one if version % 2 else other).note(looked(version))
    assert versions_of(read_history(tmp_path)) == list(range(6))


def test_many_processes_need_few_open_files(tmp_path):
    """A soak starts thousands; what has ended is closed before the next is opened."""
    for at in range(40):
        with Recorder(tmp_path, f"driver-{at}", "driver") as recorder:
            recorder.note(looked(at))
    most = 0
    for line in read_history(tmp_path):
        most = max(most, len(list(Path("/proc/self/fd").iterdir())))
        if isinstance(line.event, events.Looked) and line.event.version == 0:
            first = most
    assert most <= first + 1


def test_every_event_comes_back_as_it_was(tmp_path):
    given = [
        events.Fault(kind="SIGKILL", target="driver-1", forgets=True),
        events.Opened(driver="d", namespace="n", epoch=3),
        events.Offered(
            call=1,
            driver="d",
            namespace="n",
            lineage="l",
            batch=4,
            fingerprint="f",
            changes=[events.Change(table="t", replace=True, rows={"k": {"a": 1}, "gone": None})],
        ),
        events.Returned(call=1, version=5, own=True),
        events.Raised(call=2, error="FencedError", text="another"),
        events.Asked(call=3, namespace="n", command="recover"),
        events.Done(call=3, visible=5, published=0, horizon=1),
        events.Connected(client=1, namespace="n", kind="aio"),
        events.Listed(client=1, versions=[4, 5], began=1),
        events.SnapshotOpened(client=1, snapshot=1, version=5, began=1),
        events.Read(client=1, snapshot=1, table="t", found={"k": {"a": 1}}, absent=["gone"], began=1),
        events.Scanned(client=1, snapshot=1, table="t", rows=1, digest="0" * 32, began=1),
        events.Failed(client=1, snapshot=1, what="get", error="SnapshotExpiredError", began=1),
        events.SnapshotClosed(client=1, snapshot=1),
    ]
    with Recorder(tmp_path, "p", "driver") as recorder:
        for event in given:
            recorder.note(event)
    assert [line.event for line in read_file(tmp_path / "p.jsonl")][1:-1] == given


def test_a_torn_last_line_is_left_out_and_any_other_is_corrupt(tmp_path):
    with Recorder(tmp_path, "p", "reader") as recorder:
        recorder.note(looked(1))
    content = recorder.path.read_bytes()
    lines = list(read_file(recorder.path))
    for cut in range(len(content)):
        recorder.path.write_bytes(content[:cut])
        whole = content[:cut].count(b"\n")
        assert list(read_file(recorder.path)) == lines[:whole]
    recorder.path.write_bytes(content.replace(b'"looked"', b'"looke\n"', 1))
    with pytest.raises(CorruptError, match=r"p\.jsonl:2"):
        list(read_file(recorder.path))


def test_lines_that_were_mixed_or_are_of_another_format_are_refused(tmp_path):
    with Recorder(tmp_path, "p", "reader") as recorder:
        recorder.note(looked(1))
        recorder.note(looked(2))
    content = recorder.path.read_bytes()
    first, one, two, last = content.splitlines(keepends=True)
    for wrong in (
        first + two + one + last,
        one + two,
        first + first,
        first.replace(b'"p"', b'"p","format":2'),
    ):
        recorder.path.write_bytes(wrong)
        with pytest.raises(CorruptError):
            list(read_file(recorder.path))


def test_a_line_has_a_greatest_length(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_LINE", 300)
    with Recorder(tmp_path, "p", "reader") as recorder:
        with pytest.raises(ValueError, match="a recipe or a digest"):
            recorder.note(events.Fault(kind="x" * 300))
        recorder.note(looked(1))
    assert versions_of(read_file(recorder.path)) == [1]
    monkeypatch.setattr(files, "MAX_LINE", 60)
    with pytest.raises(CorruptError, match="longer than"):
        list(read_file(recorder.path))


def test_what_cannot_be_compared_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="no history"):
        list(read_history(tmp_path))
    Recorder(tmp_path, "a", "reader").close()
    with pytest.raises(ConfigError, match="name of its own"):
        Recorder(tmp_path, "a", "reader")
    monkeypatch.setattr(files, "boot_id", lambda: "another")
    Recorder(tmp_path, "b", "reader").close()
    with pytest.raises(ConfigError, match="several hosts"):
        list(read_history(tmp_path))


def test_threads_share_a_file(tmp_path):
    with Recorder(tmp_path, "p", "reader") as recorder:
        threads = [
            threading.Thread(target=lambda: [recorder.note(looked(at)) for at in range(200)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(versions_of(read_file(recorder.path))) == sorted(4 * list(range(200)))


def test_an_event_that_was_written_in_part_is_taken_back(tmp_path, monkeypatch):
    """Else the next line of another thread, for which there is room again, would be taken for its end."""
    write = os.write
    with Recorder(tmp_path, "a", "reader") as recorder:
        recorder.note(looked(1))
        monkeypatch.setattr(os, "write", lambda fd, line: write(fd, line[:20]))
        with pytest.raises(OSError, match="20 of") as raised:
            recorder.note(looked(2))
        assert raised.value.errno == errno.ENOSPC
        monkeypatch.undo()
        recorder.note(looked(3))
    assert versions_of(read_history(tmp_path)) == [1, 3]


def test_a_forked_child_may_not_write_into_it(tmp_path):
    recorder = Recorder(tmp_path, "p", "reader")
    recorder._pid += 1
    with pytest.raises(ValueError, match="history of"):
        recorder.note(looked(1))
    recorder._pid -= 1
    recorder.close()
    recorder.close()


def test_a_recorder_says_how_its_process_ended(tmp_path):
    with pytest.raises(KeyError), Recorder(tmp_path, "p", "reader"):
        raise KeyError
    assert list(read_file(tmp_path / "p.jsonl"))[-1].event.code == 1


def test_bytes_stand_as_text_without_mixing_them_up():
    texts = [files.as_json(content) for content in (b"N1", b"\xff", b"/w==", "käse".encode(), b"")]
    assert len(set(texts)) == 5
    assert files.as_json("N1") == "N1"
