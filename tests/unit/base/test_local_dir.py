"""The folder for what may be lost: made for one user, cleaned when stale, never needed."""

import errno
import fcntl
import logging
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from tidegate.base.local_dir import RETRY_S, STALE_S, LocalDir, check_local_dir, local_dirs
from tidegate.errors import CorruptError

UUID, OTHER = "a" * 32, "b" * 32
# From 3.12 on: there are threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
HOLDER = """
    import sys
    from tidegate.base.local_dir import LocalDir

    local = LocalDir(sys.argv[1], sys.argv[2], sys.argv[3])
    (local.shared("cache") / "kept").write_text("kept")
    print(local.shared("cache"), flush=True)
    sys.stdin.read()
"""


class Now:
    def __init__(self):
        self.seconds = 100.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def opened():
    """LocalDirs that are closed with the test."""
    made = []

    def make(root, namespace="flights", uuid=UUID, **given):
        made.append(LocalDir(str(root), namespace, uuid, **given))
        return made[-1]

    yield make
    for local in made:
        local.close()


@pytest.fixture
def holder(tmp_path):
    """Starts other processes that use a folder until they are ended."""
    started = []

    def start(namespace="flights", uuid=UUID):
        command = [sys.executable, "-c", textwrap.dedent(HOLDER), str(tmp_path), namespace, uuid]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.communicate()


def end(process, how=signal.SIGKILL):
    process.send_signal(how)
    process.wait(10)


def test_it_is_for_this_user_alone(tmp_path, opened):
    old = os.umask(0)
    try:
        local = opened(tmp_path / "new")
        folders = [local.path.parent, local.path, local.shared("cache")]
    finally:
        os.umask(old)
    for folder in folders:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert folder.stat().st_uid == os.getuid()
    assert folders[1] == tmp_path / "new" / f"tidegate-{os.getuid()}" / UUID


def test_nothing_is_made_before_it_is_asked_for(tmp_path, opened):
    opened(tmp_path)
    local_dirs(str(tmp_path), "flights", UUID)
    assert list(tmp_path.iterdir()) == []


def test_the_same_process_gets_the_same_folders(tmp_path):
    one, two = str(tmp_path / "1"), str(tmp_path / "2")
    found = local_dirs([one, two], "flights", UUID)
    assert [local.root for local in found] == [tmp_path / "1", tmp_path / "2"]
    again = local_dirs((two,), "flights", UUID)
    assert again[0] is found[1]
    assert found[0].shared("cache") == found[0].shared("cache")
    for local in found:
        local.close()


def test_by_default_it_is_the_systems_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert check_local_dir(None) == (str(tmp_path),)


def test_where_no_temporary_folder_can_be_written_to_it_is_one_warning():
    """As in a container whose own files are read-only, or on a full disk: no byte can be written anywhere."""
    script = """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        from tidegate.base.local_dir import check_local_dir, local_dirs
        local = local_dirs(None, "flights", "u1")[0]
        print(check_local_dir(None), local.shared("cache"), local.shared("cache"))
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "TMPDIR": "/proc/none"},
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, "('/proc/none',) None None\n"), ran.stderr
    assert len(ran.stderr.splitlines()) == 1, ran.stderr
    assert "Work continues without it" in ran.stderr


@pytest.mark.parametrize("uuid", ["", "..", "a/b", "/etc", "a" * 65, "a\0", "-a", "ä"])
def test_a_uuid_that_could_lead_elsewhere_is_refused(tmp_path, uuid):
    with pytest.raises(CorruptError, match="is no uuid"):
        LocalDir(str(tmp_path), "flights", uuid)


@pytest.mark.parametrize("what", ["", "..", "a/b", "/etc", "A", "a" * 33])
def test_a_folder_inside_has_a_plain_name(tmp_path, opened, what):
    with pytest.raises(ValueError, match="no name of a folder"):
        opened(tmp_path).shared(what)


# -- shared by a host's processes -----------------------------------------------------------------


def test_processes_share_one_folder(tmp_path, opened, holder):
    _, theirs = holder()
    assert str(opened(tmp_path).shared("cache")) == theirs
    assert (Path(theirs) / "kept").read_text() == "kept"


def test_what_a_killed_process_shared_is_kept(tmp_path, opened, holder):
    process, theirs = holder()
    end(process)
    assert str(opened(tmp_path).shared("cache")) == theirs
    assert (Path(theirs) / "kept").read_text() == "kept"


def _in_a_child(local, pipe):
    pipe.send(str(local.shared("cache")))


def test_a_fork_has_the_same_folder_whatever_another_thread_of_its_parent_does(tmp_path, opened):
    """T13: workers are forked."""
    local = opened(tmp_path)
    shared = local.shared("cache")
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    child = fork.Process(target=_in_a_child, args=(local, there))
    entered, ended = threading.Event(), threading.Event()

    def hold():
        with local._lock:
            entered.set()
            ended.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(60)
    try:
        child.start()
        assert here.poll(30)
        assert here.recv() == str(shared)
    finally:
        ended.set()
        thread.join()
        child.kill()
        child.join(30)
    opened(tmp_path).shared("cache")  # opens, and cleans
    assert local.shared("cache") == shared


# -- what is stale --------------------------------------------------------------------------------


def test_a_namespace_that_was_made_again_does_not_find_what_was_before(tmp_path, opened, holder):
    """Dropped and made again it has another uuid; what the old one left goes."""
    process, _ = holder(uuid=OTHER)
    end(process)
    local = opened(tmp_path)
    assert list(local.shared("cache").iterdir()) == []
    assert [path.name for path in local.path.parent.iterdir()] == [UUID]


def test_another_namespace_of_the_same_name_is_left_alone_while_it_is_used(tmp_path, opened, holder):
    _, theirs = holder(uuid=OTHER)
    assert opened(tmp_path).shared("cache")
    assert Path(theirs).exists()


def test_other_namespaces_are_removed_when_nobody_used_them_for_long(tmp_path, opened, holder):
    process, _ = holder("hotels", OTHER)
    end(process)
    theirs = tmp_path / f"tidegate-{os.getuid()}" / OTHER
    opened(tmp_path).shared("cache")
    assert theirs.exists()
    long_ago = time.time() - STALE_S - 10
    os.utime(theirs / "in-use", (long_ago, long_ago))
    opened(tmp_path).shared("cache")
    assert not theirs.exists()


def test_what_a_cleaner_left_when_it_was_killed_is_removed(tmp_path, opened):
    left = tmp_path / f"tidegate-{os.getuid()}" / f"{OTHER}.swept-1234"
    left.mkdir(parents=True)
    left.parent.chmod(0o700)
    opened(tmp_path).shared("cache")
    assert not left.exists()


def test_what_is_not_ours_by_name_is_left_alone(tmp_path, opened):
    foreign = tmp_path / f"tidegate-{os.getuid()}" / "notes.txt"
    foreign.parent.mkdir(mode=0o700)
    foreign.write_text("hello")
    opened(tmp_path).shared("cache")
    assert foreign.read_text() == "hello"


def test_many_processes_open_and_clean_at_once(tmp_path):
    """One opens while another cleans: each ends with a folder that is really there."""
    code = f"""
        import sys
        from tidegate.base.local_dir import LocalDir
        for round in range(30):
            local = LocalDir({str(tmp_path)!r}, "flights", "ab"[(int(sys.argv[1]) + round) % 2] * 32)
            (local.shared("cache") / sys.argv[1]).write_text("x")
            assert (local.shared("cache") / sys.argv[1]).read_text() == "x"
            local.close()
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    running = [subprocess.Popen([*command, str(i)], stderr=subprocess.PIPE, text=True) for i in range(4)]
    assert [(process.communicate(timeout=60)[1], process.returncode) for process in running] == [("", 0)] * 4


def test_a_folder_that_is_removed_between_two_steps_is_made_again(tmp_path, opened, monkeypatch):
    lstat, removed = Path.lstat, []

    def remove_first(path):
        if path.name == OTHER and not removed:
            removed.append(path)
            path.rename(path.with_name(f"{path.name}.swept-1"))
        return lstat(path)

    local = opened(tmp_path, uuid=OTHER)
    monkeypatch.setattr(Path, "lstat", remove_first)
    folder = local.shared("cache")
    assert folder is not None
    assert (folder.is_dir(), len(removed)) == (True, 1)


# -- trouble --------------------------------------------------------------------------------------


def refuses(number):
    def call(*_args, **_given):
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize(
    "number,cause",
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EROFS, "it is read-only"),
        (errno.EACCES, "may not write there"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_trouble_is_told_once_and_the_folder_tried_again_later(
    tmp_path, opened, monkeypatch, caplog, number, cause
):
    now = Now()
    local = opened(tmp_path, now=now)
    with monkeypatch.context() as broken:
        broken.setattr("os.mkdir", refuses(number))
        for _ in range(3):
            assert local.shared("cache") is None
            now.seconds += RETRY_S
        now.seconds -= 1
        assert local.shared("cache") is None
    assert local.shared("cache") is None  # not before its time
    [warning] = caplog.records
    assert warning.levelno == logging.WARNING
    assert cause in warning.getMessage()
    assert str(local.path) in warning.getMessage()
    now.seconds += 1
    assert local.shared("cache").is_dir()


def test_trouble_that_its_user_met_counts_too(tmp_path, opened, caplog):
    now = Now()
    local = opened(tmp_path, now=now)
    assert local.shared("cache")
    local.failed(OSError(errno.ENOSPC, "No space left on device"))
    local.failed(OSError(errno.ENOSPC, "No space left on device"))
    assert local.shared("cache") is None
    assert len(caplog.records) == 1
    now.seconds += RETRY_S
    assert local.shared("cache")


@pytest.mark.parametrize(
    "root, told", [("/dev/shm", "state_memory_bytes to 0"), ("/data", "set local_dir to")]
)
def test_trouble_is_told_with_the_option_that_leads_out_of_it(opened, caplog, root, told):
    opened(root).failed(OSError(errno.ENOSPC, "No space left on device"))
    assert told in caplog.records[0].getMessage()


def test_a_folder_that_was_deleted_is_made_anew(tmp_path, opened):
    local = opened(tmp_path)
    cache = local.shared("cache")
    (cache / "x").write_text("x")
    shutil.rmtree(tmp_path)
    assert list(local.shared("cache").iterdir()) == []
    shutil.rmtree(local.path / "shared")
    assert local.shared("cache").is_dir()


@pytest.mark.parametrize("kind", ["open to others", "a link", "a file"])
def test_a_folder_that_somebody_else_prepared_is_not_used(tmp_path, opened, caplog, kind):
    """In a folder like /tmp anybody may make it first, and read or swap what is put there."""
    place = tmp_path / f"tidegate-{os.getuid()}"
    if kind == "open to others":
        place.mkdir()
        place.chmod(0o770)
    elif kind == "a link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "theirs")
    else:
        place.write_text("")
    assert opened(tmp_path).shared("cache") is None
    assert "tidegate-" in caplog.records[0].getMessage()
    assert not (tmp_path / "theirs").exists() or not list((tmp_path / "theirs").iterdir())


def test_a_folder_that_others_keep_locked_is_given_up(tmp_path, opened, caplog):
    local = opened(tmp_path)
    local.path.mkdir(parents=True)
    local.path.parent.chmod(0o700)
    local.path.chmod(0o700)
    with (local.path / "in-use").open("w") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        assert local.shared("cache") is None
    assert "keeps removing it" in caplog.records[0].getMessage()
