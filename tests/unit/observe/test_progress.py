"""What is shown of versions as they become visible: on a terminal, in a notebook, nowhere."""

import os
import pty
import subprocess
import sys
import textwrap

import pytest

from tidegate.observe import events, progress
from tidegate.observe.events import Commit

COMMITS = """
    from tidegate.observe import events, progress
    from tidegate.observe.events import Commit

    def commit(version):
        phases = {"stage": 0.25, "decide": 0.002, "apply": 0.1, "publish": 0.001}
        rows = {"legs": 1_200}
        made = Commit("flights", version, version - 1, seconds=0.353, phases=phases, rows=rows)
        events.tell(lambda observer: observer.committed(made))
"""


def script(body):
    return [sys.executable, "-c", textwrap.dedent(COMMITS) + textwrap.dedent(body)]


SHOW = """
    with progress.shown():
        for version in range(1, 12):
            commit(version)
    commit(99)  # nobody is shown it any more
"""


def test_it_counts_and_keeps_the_last_ones():
    shown = []
    told = progress.Progress(shown.append)
    for version in range(1, 12):
        told.committed(Commit("flights", version, version - 1, rows={"legs": 3, "airports": 2}))
    assert (told.versions, told.rows, len(shown)) == (11, 55, 11)
    assert shown[-1].row_count == progress.LAST
    told.failed(Commit("flights", 12, 11), ValueError("a row"))
    assert str(shown[-1].caption) == "batch 11: ValueError: a row"
    told.committed(Commit("flights", 12, 11))
    assert shown[-1].caption is None


def test_nothing_is_shown_where_nobody_looks():
    ran = subprocess.run(script(SHOW), capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("", "")


def test_on_a_terminal_it_stands_in_one_place():
    ours, theirs = pty.openpty()
    with subprocess.Popen(script(SHOW), stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                some = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not some:
                break
            said += some
        assert process.wait(60) == 0
    os.close(ours)
    text = said.decode()
    assert "11 versions, 13,200 rows" in text
    assert "flights" in text
    assert "1,200" in text
    assert "\x1b[" in text  # it is drawn over
    assert " 99 " not in text


def test_in_a_notebook_one_display_is_replaced():
    ran = subprocess.run(
        script("""
            from IPython.core.displaypub import CapturingDisplayPublisher
            from IPython.core.interactiveshell import InteractiveShell

            shell = InteractiveShell.instance()
            published = shell.display_pub = CapturingDisplayPublisher(parent=shell)
            with progress.shown():
                for version in range(1, 4):
                    commit(version)
            outputs = published.outputs
            assert len({each["transient"]["display_id"] for each in outputs}) == 1
            assert [each["update"] for each in outputs] == [False, True, True, True]
            page = outputs[-1]["data"]["text/html"]
            assert "3 versions, 3,600 rows" in page and "0.353" in page and "<pre" in page, page
        """),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def test_who_was_shown_is_told_no_more(monkeypatch):
    monkeypatch.setattr(events, "observers", ())
    with pytest.raises(ZeroDivisionError), progress.shown():
        1 // int(not events.observed())
    assert not events.observed()
