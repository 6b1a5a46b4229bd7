"""The spillable buffer between processes: shared, killed at any I/O, left behind, on disks that are full."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tidegate.base.local_dir import LocalDir
from tidegate.sinks.cache.buffer.buffer import Buffer
from tidegate.sinks.cache.buffer.limits import BufferLimits
from tidegate.sinks.cache.buffer.mapped_files import MappedFiles
from tidegate.sinks.cache.buffer.owner import FOREIGN_S, Owner, is_alive, owner_of_this_process

START = """
    import json, os, sys, time
    from pathlib import Path
    from tidegate.base.local_dir import LocalDir
    from tidegate.sinks.cache.buffer.buffer import Buffer, BufferLimits

    root = Path(sys.argv[1])
    def opened(**limits):
        sizes = {"memory_bytes_max": 1 << 20, "disk_bytes_max": 1 << 20, "file_bytes": 16384}
        limits = BufferLimits(**sizes | limits)
        names = ("memory", "disk0", "disk1")
        memory, *disks = (LocalDir(str(root / name), "flights", "u1") for name in names)
        return Buffer(memory, disks, limits)
    buffer = opened()
"""


@pytest.fixture
def run(tmp_path):
    """Runs a script that has a buffer in a process of its own; all are ended with the test."""
    started = []

    def start(body, *arguments, prefix=()):
        script = textwrap.dedent(START) + textwrap.dedent(body)
        process = subprocess.Popen(
            [*prefix, sys.executable, "-c", script, str(tmp_path), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def opened(tmp_path):
    locals_ = [LocalDir(str(tmp_path / name), "flights", "u1") for name in ("memory", "disk0", "disk1")]
    yield lambda: Buffer(locals_[0], locals_[1:], BufferLimits(1 << 20, 1 << 20, 16384))
    for local in locals_:
        local.close()


def result_of(process):
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return json.loads(out)


def sizes(buffer):
    return {
        tier: sum(
            path.stat().st_size
            for files in buffer.paths(tier)
            for path in files.folder.glob(f"units/*/*.{tier}")
        )
        for tier in ("memory", "disk")
    }


def test_two_processes_share_what_was_kept(run, opened):
    buffer = opened()
    first = run("""
        with buffer.claim("3") as held:
            kept = [held.write([bytes([tier]) * 5000], name) for tier, name in enumerate(["memory", "disk"])]
            held.keep(kept, b"chain 7")
        print(json.dumps("done"))
    """)
    assert result_of(first) == "done"
    second = run("""
        with buffer.claim("3") as held:
            contents = [held.view(segment).to_pybytes() for segment in held.segments]
            found = [content == bytes([at]) * 5000 for at, content in enumerate(contents)]
            moved = held.move("disk")
        print(json.dumps([found, held.caller.decode(), moved]))
    """)
    assert result_of(second) == [[True, True], "chain 7", 5000]
    with buffer.claim("3") as held:
        assert [segment.tier for segment in held.segments] == ["disk", "disk"]
    assert buffer.used_bytes("memory") == 0


def test_the_limit_holds_for_all_processes_together(run, opened):
    buffer = opened()
    script = """
        tiers = []
        for group in range(int(sys.argv[2]), 100, 2):
            with buffer.claim(str(group)) as held:
                segment = held.write([b"x" * 30_000])
                if segment is not None:
                    held.keep([segment], b"")
                tiers.append(segment and segment.tier)
        print(json.dumps(tiers))
    """
    tiers = [tier for process in [run(script, "0"), run(script, "1")] for tier in result_of(process)]
    fitting = (1 << 20) // 30_016
    assert [tiers.count(tier) for tier in ("memory", "disk", None)] == [fitting, fitting, 100 - 2 * fitting]
    found = sizes(buffer)
    assert max(found.values()) <= 1 << 20


def test_who_counts_anew_while_another_writes_counts_what_is_being_written(opened, monkeypatch):
    buffer, write = opened(), MappedFiles.write

    def counted_meanwhile(*of):
        opened()  # a process that begins: it measures the files, and sets the count
        write(*of)

    monkeypatch.setattr(MappedFiles, "write", counted_meanwhile)
    with buffer.claim("3") as held:
        held.keep([held.write([b"x" * 30_000])], b"")
    assert buffer.used_bytes("memory") == sizes(buffer)["memory"] == 30_016


def test_a_process_that_is_killed_leaves_the_group_as_it_was(run, opened):
    process = run("""
        with buffer.claim("3") as held:
            held.keep([held.write([b"kept" * 1000])], b"7")
        with buffer.claim("3") as held:
            for size in range(20):
                held.write([b"lost" * 1000 * size + b"x"])
                held.write([b"lost" * 1000 * size + b"x"], "disk")
            print("ready", flush=True)
            sys.stdin.read()
    """)
    assert process.stdout.readline() == "ready\n"
    buffer = opened()
    with buffer.claim("3") as nothing:
        assert nothing is None
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    before = sizes(buffer)
    assert before["memory"] > 400_000
    with buffer.claim("3") as held:
        assert [held.view(segment).to_pybytes() for segment in held.segments] == [b"kept" * 1000]
        held.keep([held.write([b"new" * 1000])], b"8")
    assert sizes(buffer)["disk"] == 0
    assert sizes(buffer)["memory"] <= 2 * 16384
    assert buffer.used_bytes("memory") == sizes(buffer)["memory"]


SWEEP = """
    import pathlib, signal
    import pyarrow as pa

    counter = {"left": 0}

    def counted(owner, name, half=None):
        real = getattr(owner, name)
        def call(*arguments, **named):
            counter["left"] -= 1
            if counter["left"] == 0:
                if half is not None:
                    half(real, *arguments)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)
        setattr(owner, name, call)

    def half_a_write(real, fd, chunks, offset):
        real(fd, [chunks[0][: len(chunks[0]) // 2]], offset)

    def install():
        counted(os, "pwritev", half_a_write)
        for name in ("open", "pwrite", "truncate"):
            counted(os, name)
        counted(pathlib.Path, "write_bytes", lambda real, path, content: real(path, content[:20]))
        for name in ("rename", "unlink", "mkdir"):
            counted(pathlib.Path, name)

    def first(): return bytes(range(250)) * 40
    def second(): return b"second" * 1500
    STATES = {b"": [], b"1": [first()], b"2": [second(), first()], b"3": [second()]}

    def work(buffer):
        with buffer.claim("5") as held:
            held.keep([held.write([first()])], b"1")
        with buffer.claim("5") as held:
            held.keep([held.write([second()]), *held.segments], b"2")
            held.move("disk")
            held.keep(held.segments[:1], b"3")
        with buffer.claim("5") as held:
            held.move("memory")
            held.drop()

    def found(buffer):
        with buffer.claim("5") as held:
            assert held is not None, "the killed process's lock is held"
            contents = [held.view(segment).to_pybytes() for segment in held.segments]
            assert contents == STATES[held.caller], held.caller
            named = {segment.file for segment in held.segments}
            tiers = {segment.tier for segment in held.segments}
            assert len(tiers) <= 1, "in memory and on disk"
            state = held.caller.decode()
        for name in ("memory", "disk0", "disk1"):
            for path in (root / name).rglob("*.memory"), (root / name).rglob("*.disk"):
                assert {one.name for one in path} <= named, "a file that nothing names"
        return state

    states = []
    for point in range(1, 1000):
        pid = os.fork()
        if pid == 0:
            install()
            counter["left"] = point
            work(opened())
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        fresh = opened()
        states.append(found(fresh))
        with fresh.claim("5") as held:
            held.drop()
        used = fresh.recount()
        assert used == (0, 0), used
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
    print(json.dumps(states))
"""


def test_killed_at_any_io_a_group_is_as_it_was_or_as_it_was_to_be(run):
    """T39 for the buffer: what is found is one of the states that were kept, whole, and no other file."""
    states = result_of(run(SWEEP))
    assert len(states) > 40
    assert [state for state, _ in itertools.groupby(states)] == ["", "1", "2", "3", ""]


# -- owners ---------------------------------------------------------------------------------------

KEEP = """
    with buffer.claim("3") as held:
        held.keep([held.write([b"x" * 5000])], b"")
"""
WAIT = """
    print("ready", flush=True)
    sys.stdin.read()
"""
NOT_KEPT = """
    claimed = buffer.claim("4")
    held = claimed.__enter__()
    held.write([b"not kept" * 1000])
    held.write([b"not kept" * 1000], "disk")
"""
OTHER = """
    buffer = Buffer(LocalDir(str(root / "memory"), "other", "u9"), [], buffer.limits)
"""


def wait_for(process):
    assert process.stdout.readline() == "ready\n"


def end(process):
    process.kill()
    process.wait(timeout=30)


def test_what_a_dead_owner_kept_is_taken_over_and_the_rest_goes(run, opened, tmp_path):
    """No JVM is above this process, so each process is an owner of its own."""
    process = run(KEEP + NOT_KEPT + WAIT)
    wait_for(process)
    end(process)
    assert len(list(tmp_path.rglob("*.memory"))) == 2
    buffer = opened()
    assert buffer.notes().keys() == {"3"}
    assert buffer.look("3").views[0].to_pybytes() == b"x" * 5000
    assert len(list(tmp_path.rglob("*.memory"))) == 1
    assert not list(tmp_path.rglob("*.disk"))
    assert buffer.used_bytes("memory") == 5056


def test_what_a_dead_owner_left_of_another_namespace_is_removed(run, opened, tmp_path):
    process = run(OTHER + KEEP + WAIT)
    wait_for(process)
    opened()
    assert list(tmp_path.rglob("u9/**/*.memory")), "its owner lives"
    end(process)
    opened()
    assert not list(tmp_path.rglob("u9/**/*.memory"))
    assert not list(tmp_path.rglob("dead-*"))


def test_what_has_no_marks_stays(run, opened, tmp_path):
    """Whose it is cannot be known: a folder that was deleted and made again while it was used."""
    process = run(OTHER + KEEP + WAIT)
    wait_for(process)
    end(process)
    shutil.rmtree(tmp_path / "memory" / f"tidegate-{os.getuid()}" / "u9" / "shared" / "buffer" / "owners")
    opened()
    assert list(tmp_path.rglob("u9/**/*.memory"))


@pytest.fixture
def proc(tmp_path):
    """A /proc with some processes: this one under a daemon under a JVM."""

    def process(pid, name, parent, started, state="S"):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        rest = " ".join(["0"] * 17)
        (folder / "stat").write_text(f"{pid} ({name}) {state} {parent} {rest} {started} 0 0\n")

    boot = tmp_path / "proc/sys/kernel/random"
    boot.mkdir(parents=True)
    (boot / "boot_id").write_text("aaaa-1\n")
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[77]")
    process(os.getpid(), "python) 3 (", 20, 900)
    process(20, "python", 10, 500)
    process(10, "java", 1, 100)
    process(1, "init", 0, 1)
    return tmp_path / "proc", process


def test_a_workers_owner_is_the_jvm_above_it(proc):
    folder, process = proc
    assert owner_of_this_process(folder) == Owner("aaaa-1", 77, 10, 100)
    process(10, "bash", 1, 100)
    assert owner_of_this_process(folder) == Owner("aaaa-1", 77, os.getpid(), 900)
    process(20, "java", 10, 500, state="Z")
    assert owner_of_this_process(folder).pid == os.getpid()
    assert owner_of_this_process(folder / "none") == Owner("0", 0, os.getpid(), 0)


def test_an_owner_is_known_by_boot_and_start_time(proc):
    folder, process = proc
    owner = Owner("aaaa-1", 77, 10, 100)
    now = time.time()
    assert Owner.of_mark(owner.mark) == owner
    assert Owner.of_mark("lock") is None
    assert is_alive(owner, 0, folder)
    assert not is_alive(owner._replace(boot="aaaa-2"), now, folder), "before the last boot"
    assert not is_alive(owner._replace(started=99), now, folder), "its pid is another's by now"
    assert not is_alive(owner._replace(pid=11), now, folder)
    process(10, "java", 1, 100, state="Z")
    assert not is_alive(owner, now, folder)
    container = owner._replace(namespace=78)
    assert is_alive(container, now, folder), "nobody can look into another container"
    assert not is_alive(container, now - 2 * FOREIGN_S, folder)
    assert not is_alive(owner, now, folder / "none")


def test_this_process_is_alive():
    owner = owner_of_this_process()
    assert is_alive(owner, 0)
    assert re.fullmatch(r"[0-9a-f-]{36}\.\d+\.\d+\.\d+", owner.mark)


# -- file systems that are full or read-only --------------------------------------------------------


def mounted(options, folder):
    """Runs a command with a file system of its own mounted there; only that command sees it."""
    return ("unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o {options} none {folder} && exec "$@"', "sh")


MOUNTS = (
    shutil.which("unshare")
    and subprocess.run([*mounted("size=1m", "/mnt"), "true"], check=False).returncode == 0
)
FILL = """
    tiers, lost = [], 0
    for group in range(40):
        with buffer.claim(str(group)) as held:
            segment = held and held.write([bytes([group]) * 100_000], sys.argv[2])
            if segment is None or not held.keep([segment], b""):
                lost += 1
    for group, note in buffer.notes().items():
        with buffer.claim(group) as held:
            for segment in held.segments:
                tiers.append([segment.tier, segment.path])
                assert held.view(segment).to_pybytes() == bytes([int(group)]) * 100_000
    print(json.dumps([sorted(tiers), lost]))
"""


@pytest.mark.skipif(not MOUNTS, reason="no file system can be mounted here")
@pytest.mark.parametrize("options,fits", [("size=2m", 9), ("ro", 0)])
def test_on_a_disk_that_is_full_or_read_only_the_next_is_used(run, tmp_path, options, fits):
    (tmp_path / "disk0").mkdir()
    body = FILL.replace("range(40)", "range(15)")
    tiers, lost = result_of(run(body, "disk", prefix=mounted(options, tmp_path / "disk0")))
    assert lost == 0
    on = [tiers.count(["disk", path]) for path in (0, 1)]
    assert on[0] <= fits
    assert on[0] > 0 or not fits
    assert 0 < on[1] <= 10
    assert sum(on) + tiers.count(["memory", 0]) == 15


@pytest.mark.skipif(not MOUNTS, reason="no file system can be mounted here")
def test_in_a_small_memory_file_system_what_does_not_fit_goes_to_disk(run, tmp_path):
    """As in a container, with 64 MB: here 4 MB, and a limit of 8."""
    (tmp_path / "memory").mkdir()
    body = "    buffer = opened(memory_bytes_max=8 << 20, disk_bytes_max=8 << 20)\n" + FILL
    tiers, lost = result_of(run(body, "memory", prefix=mounted("size=4m", tmp_path / "memory")))
    assert lost == 0
    assert {tier for tier, _ in tiers} == {"memory", "disk"}
    assert len(tiers) == 40


def test_files_that_may_not_grow_are_an_error_of_the_path(run, tmp_path):
    """A limit on file sizes, which any user may have: EFBIG from a real write, half of it done."""
    body = "    import resource\n    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n" + FILL
    assert result_of(run(body, "memory")) == [[], 40]
    assert not list(tmp_path.rglob("*.memory"))


def test_a_read_only_place_is_told_once(run, tmp_path):
    for name in ("memory", "disk0", "disk1"):
        (tmp_path / name).write_text("a file is in the way")
    process = run("""
        with buffer.claim("1") as held:
            print(json.dumps(held))
    """)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "null\n")
    assert len(err.splitlines()) == 3, err
    assert all("Work continues without it" in line for line in err.splitlines())


MAPPED = """
    import shutil
    from tidegate.sinks.cache.buffer.balance import balance

    buffer = opened(disk_bytes_max=4 << 20)
    content = {group: bytes([group]) * 100_000 for group in range(32)}
    for group in range(9):
        with buffer.claim(str(group)) as held:
            assert held.keep([held.write([content[group]], "disk")], b"")
    views = {group: buffer.look(str(group)).views[0] for group in range(9)}
    assert {note.segments[0].path for note in buffer.notes().values()} == {0, 1}

    disk = root / "disk0"
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    with (disk / "ballast").open("wb") as file:  # of others: the disk is full
        os.posix_fallocate(file.fileno(), 0, free)
    for group in range(9, 19):
        assert buffer.put(str(group), [content[group]])
    spilled = balance(buffer, batch=1).spilled
    spilled_to = {
        (segment.tier, segment.path)
        for unit, note in buffer.notes().items() if int(unit) >= 9 for segment in note.segments
    }
    full = all(view.to_pybytes() == content[group] for group, view in views.items())
    looked = all(buffer.look(unit).views[0].to_pybytes() == content[int(unit)] for unit in buffer.notes())

    for name in ("disk0", "disk1"):  # deleted by someone
        shutil.rmtree(root / name / f"tidegate-{os.getuid()}")
    gone = all(view.to_pybytes() == content[group] for group, view in views.items())
    balance(buffer, batch=2)
    os.truncate(disk / "ballast", 0)
    with buffer.claim("31") as held:
        assert held.keep([held.write([content[31]], "disk")], b"")
    again = buffer.look("31").views[0].to_pybytes() == content[31]
    print(json.dumps([spilled > 0, sorted(spilled_to), full, looked, gone, again]))
"""


@pytest.mark.skipif(not MOUNTS, reason="no file system can be mounted here")
def test_mapped_files_survive_a_full_disk_and_a_deleted_folder(run, tmp_path):
    """No signal, no wrong byte: a spill takes the next disk, and what is mapped stays as it was."""
    (tmp_path / "disk0").mkdir()
    found = result_of(run(MAPPED, prefix=mounted("size=2m", tmp_path / "disk0")))
    assert found == [True, [["disk", 1], ["memory", 0]], True, True, True, True]
