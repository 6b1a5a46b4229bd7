"""What a child of a fork finds where another thread of its parent was at work."""

import ctypes
import gc
import os
import signal
import threading

import pytest

import tidegate
from support.wait import wait_until
from tidegate.base import forks
from tidegate.base.urls import Address
from tidegate.reader import alias_gate
from tidegate.sinks.redis.client.servers import servers_of
from tidegate.sinks.redis.client.settings import settings_of
from tidegate.testing.example import write_flights

DEADLINE_S = 30
# From 3.12 on: there are threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


def in_a_child(work):
    """Whether the work ends there, without an error."""
    child = os.fork()
    if not child:
        signal.alarm(DEADLINE_S)
        try:
            work()
        except BaseException:  # noqa: BLE001 - the exit code says so
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def in_a_child_of_c(work):
    """As ``in_a_child``, without Python's hooks, as a server forks that is no Python program."""
    child = ctypes.PyDLL(None).fork()
    if not child:
        signal.alarm(DEADLINE_S)
        try:
            work()
        except BaseException:  # noqa: BLE001 - the exit code says so
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_that_no_hook_knows_renews_its_snapshots_and_reads_on(tmp_path):
    """Its parent has a thread that renews, idle connections, and a snapshot of its own."""
    wal, url = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
    write_flights(wal, url)
    with tidegate.connect(url, "flights") as gate, gate.snapshot(lease_s=600) as held:
        assert held.table("airports").get("JFK")
        keeper = gate._reader.leases

        def work():
            with gate.snapshot(lease_s=600) as taken:
                assert taken.table("airports").get("JFK")["departures"] == 1
                assert taken._hold.active is not held._hold.active
                assert keeper._thread is not parents
                assert keeper._thread.is_alive()
                renewed = []
                keeper._renew = lambda active: iter(renewed.append(active) or ())
                taken._hold.active.due = 0.0
                keeper._wake()
                wait_until(lambda: renewed, "it is renewed")

        parents = keeper._thread
        assert parents.is_alive()
        assert in_a_child_of_c(work)
        assert held.table("airports").get("JFK")
        assert parents.is_alive()


def test_a_lock_that_another_thread_holds_is_free_in_a_child():
    lock, held, done = forks.Lock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            done.wait(DEADLINE_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(DEADLINE_S)
    try:
        assert in_a_child(lock.__enter__)
    finally:
        done.set()
        thread.join()
    with lock:
        pass


def test_a_child_reads_by_an_alias_while_another_thread_was_opening_what_it_names(tmp_path, monkeypatch):
    """T13: for as long as the store takes to answer, the gate's lock is held."""
    wal, url = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
    write_flights(wal, url, "blue", alias="live")
    opening, answers = threading.Event(), threading.Event()
    with tidegate.connect(url, "live") as gate:
        write_flights(wal, url, "green", alias="live")
        assert isinstance(gate, alias_gate.AliasGate)
        open_gate = gate._open_gate

        def slow(target):
            opening.set()
            assert answers.wait(DEADLINE_S)
            return open_gate(target)

        monkeypatch.setattr(gate, "_open_gate", slow)
        thread = threading.Thread(target=gate.version)
        thread.start()
        assert opening.wait(DEADLINE_S)

        def read():
            gate._open_gate = open_gate
            assert (gate.version(), gate.namespace) == (3, "green")

        try:
            assert in_a_child(read)
        finally:
            answers.set()
            thread.join()


def test_what_is_collected_while_its_thread_is_in_a_lock_may_ask_the_store():
    """A scan that was dropped half-way, in a cycle with a traceback for one, gives its lease back."""
    servers, asked, ended = servers_of(settings_of("redis://nowhere", {})), [], threading.Event()

    def scan():
        try:
            yield
        finally:
            asked.append(servers.node_of(b"key").address)

    def work():
        dropped = scan()
        next(dropped)
        cycle = [dropped]
        cycle.append(cycle)
        del dropped, cycle
        with servers._lock:  # as ``node_at`` does, which makes a node in it
            gc.collect()
        ended.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert ended.wait(DEADLINE_S), "it waits for itself"
    thread.join()
    assert asked == [Address("nowhere", 6379)]


# -- libraries with locks of their own ------------------------------------------------------------------


def test_a_fork_waits_until_no_other_thread_is_in_a_library():
    region, entered, leave = forks.NoFork(), threading.Event(), threading.Event()

    def use():
        with region, region:
            entered.set()
            leave.wait(DEADLINE_S)

    thread = threading.Thread(target=use)
    thread.start()
    entered.wait(DEADLINE_S)
    forked = threading.Thread(target=region._before)
    with region:  # its own thread may be inside
        forked.start()
    wait_until(lambda: region._forking)
    assert forked.is_alive()
    entry = threading.Thread(target=region.__enter__)
    entry.start()
    leave.set()
    forked.join(DEADLINE_S)
    assert entry.is_alive(), "it waits until the fork is done"
    region._after()
    entry.join(DEADLINE_S)
    thread.join(DEADLINE_S)
    region._before()  # that thread has ended inside
    assert not region._others(0)
    region._after()
    region._depths.clear()  # its hooks stay, and another thread may get that number


def test_a_child_reads_a_store_in_files_that_threads_of_its_parent_were_reading(tmp_path):
    """Red before: within a few forks a child waited without end for a lock of SQLite."""
    wal, url = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
    write_flights(wal, url)
    ended = threading.Event()
    with tidegate.connect(url, "flights") as gate:

        def read():
            while not ended.is_set():
                gate.table("airports").get("JFK")

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(40):
                assert in_a_child(lambda: gate.table("airports").get("JFK"))
        finally:
            ended.set()
            for thread in threads:
                thread.join()
