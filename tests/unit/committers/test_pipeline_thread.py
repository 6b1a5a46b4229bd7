"""The thread of pipelined commits: it ends with its query, and drains before the process exits."""

import contextlib
import subprocess
import sys
import threading

from support.committers.pipelines import DEADLINE_S, barrier_of, check_content, visible
from support.places import driver_at, fails
from support.wait import wait_until
from tidegate.committers.background.pipeline import Pipeline, PipelineThread
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import (
    CorruptError,
    StoreUnavailableError,
)


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "tidegate-pipeline"]


def test_the_thread_ends_with_its_query_once_all_is_visible_and_starts_again(place, gates):
    driver = driver_at(place, port=gates, heartbeat_s=0.01)
    open_namespace(driver, "query-1")
    pipeline = PipelineThread(driver, ended=lambda: True)
    gates.close("publish")
    pipeline.commit(barrier_of(driver, 0))
    wait_until(lambda: "publish" in gates.waiting, "the first is about to be published")
    assert threads()
    gates.open("publish")
    wait_until(lambda: not threads(), "the thread ends")
    check_content(place, 1)
    pipeline.commit(barrier_of(driver, 1))
    assert pipeline.close() is None
    check_content(place, 2)
    assert not threads()


def test_closing_drains_and_tells_what_it_could_not(place, gates, make):
    driver, pipeline = make(apply_deadline_s=0.1)
    gates.close("publish")
    pipeline.commit(barrier_of(driver, 0))
    closing = []
    running = threading.Thread(target=lambda: closing.append(pipeline.close()))
    running.start()
    wait_until(lambda: pipeline.stopped, "the drain's deadline passes")
    gates.open("publish")
    running.join(DEADLINE_S)
    assert isinstance(closing[0], StoreUnavailableError)
    assert not threads()


def test_nothing_is_completed_on_a_pipeline_that_nobody_runs(place, gates):
    """Both sides can be driven by one thread: as the crash sweep does."""
    driver = driver_at(place, port=gates, commit_in_flight=3)
    open_namespace(driver, "query-1")
    pipeline = Pipeline(driver)
    for batch_id in range(3):
        pipeline.commit(barrier_of(driver, batch_id))
    assert visible(place) == 0
    for version in range(1, 4):
        pipeline.complete_next()
        assert visible(place) == version
    check_content(place, 3)


AT_EXIT = """
import sys, threading
sys.argv = [{folder!r}]
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.background.pipeline import PipelineThread
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.open_log import open_log

wal, store = "file://{folder}/wal", "sqlite://{folder}/store"
kept = open_store(store, "n")
driver = Coordinator(Endpoints("n", wal, store), open_log(wal, "n"), kept, Options(key_groups=4))
open_namespace(driver, "q")
pipeline = PipelineThread(driver)
main = threading.main_thread()
plain = kept.publish

def publish(entry, epoch):
    while main.is_alive():  # so that nothing is visible before the interpreter begins to exit
        main.join(0.05)
    return plain(entry, epoch)

kept.publish = publish
for number in range(2):
    rows = {{"t": {{b"k": b"%d" % number}}}}
    pipeline.commit(ArrowBarrier(driver.log, rows, batch("q", number), 4))
print("visible", kept.pointer().visible, flush=True)
"""


def test_a_process_that_exits_drains_first(tmp_path):
    script = AT_EXIT.format(folder=str(tmp_path))
    command = [sys.executable, "-c", script]
    told = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert told.stdout.split() == ["visible", "0"]
    from tidegate.sinks.open_store import open_store

    with contextlib.closing(open_store(f"sqlite://{tmp_path}/store", "n")) as store:
        assert store.pointer().visible == 2


def test_a_process_that_exits_with_nothing_in_flight_says_nothing(place, caplog):
    driver = driver_at(place)
    open_namespace(driver, "query-1")
    pipeline = PipelineThread(driver)
    pipeline.commit(barrier_of(driver, 0))
    pipeline._at_exit()
    assert driver.store.pointer().visible == 1
    assert "in flight" not in caplog.text


def test_a_process_that_exits_with_versions_in_flight_says_so(place, monkeypatch, caplog):
    driver = driver_at(place)
    open_namespace(driver, "query-1")
    pipeline = PipelineThread(driver)
    monkeypatch.setattr(driver.store, "apply", fails(CorruptError("damaged")))
    pipeline.commit(barrier_of(driver, 0))
    pipeline._at_exit()
    assert "the process ends with versions in flight, for the next one to recover" in caplog.text
    monkeypatch.undo()
    assert open_namespace(driver_at(place), "query-1") == [1]


def test_a_thread_that_has_nothing_to_do_asks_whether_its_query_has_ended(place):
    driver = driver_at(place, heartbeat_s=0.01)
    open_namespace(driver, "query-1")
    answers, asked = iter([False, False, True]), threading.Event()

    def ended():
        answer = next(answers, True)
        if answer:
            asked.set()
        return answer

    pipeline = PipelineThread(driver, ended=ended)
    pipeline.commit(barrier_of(driver, 0))
    thread = pipeline._thread
    assert asked.wait(DEADLINE_S)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert driver.store.pointer().visible == 1
