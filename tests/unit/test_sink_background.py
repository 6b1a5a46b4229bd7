"""What a sink runs beside its batches, without Spark: begun once, and anew when a query comes again."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from tidegate.committers.follower import FollowerThread
from tidegate.committers.right_of_way import RightOfWay
from tidegate.spark.sink import VersionedSink

WAIT_S = 30.0


class Slow:
    """A follower that catches up until it is told to stop: it has thousands of versions to go."""

    name, namespace, heartbeat_s, failed = "copy", "flights", 0.01, None
    driven_by = None

    def __init__(self):
        self.began, self.at_once, self.most = threading.Event(), 0, 0
        self.answered = threading.Event()
        self.answered.set()

    def step(self, stopped):
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.began.set()
        while not stopped():
            threading.Event().wait(0.001)
        assert self.answered.wait(WAIT_S)
        self.at_once -= 1
        return False

    def beat(self):
        return True

    def went_well(self, *, level):
        pass


@pytest.mark.parametrize("answers", [True, False])
def test_a_follower_that_catches_up_gets_no_second_thread_when_a_query_comes_again(tmp_path, answers):
    """The query has ended and its follower has not; a load, or the query, begins another Background. It does
    not wait for a copy that does not answer.
    """
    where = {"wal": f"file://{tmp_path}/wal", "store": f"sqlite://{tmp_path}/store"}
    sink = VersionedSink(namespace="flights", **where, heartbeat_s=0.01)
    slow, closed = Slow(), SimpleNamespace(close=lambda: None)
    slow.store = closed
    sink._followers = [slow]
    sink._driver = SimpleNamespace(log=closed, store=closed, epoch=0, last_decided=0, way=RightOfWay())
    running = threading.Event()
    running.set()
    sink._keep_alive(running.is_set)
    first = sink._background
    assert slow.began.wait(WAIT_S)
    running.clear()
    for thread in first._threads:
        thread.join(WAIT_S)
    assert first.ended
    slow.began.clear()
    if not answers:
        slow.answered.clear()
    sink._keep_alive(lambda: True)
    assert sink._background is not first
    if not answers:
        assert slow.at_once == 1, "nobody has waited for it"
        assert not slow.began.wait(0.1)
        slow.answered.set()
    assert slow.began.wait(WAIT_S)
    sink._release()
    assert (slow.most, slow.at_once) == (1, 0)


def test_a_follower_that_meets_an_error_is_told_and_tries_again():
    """Whatever it is, also what Spark raises as it ends."""
    errors, met, well = [ValueError("a bug")], [], threading.Event()

    def step(_):
        for error in iter(errors):
            errors.remove(error)
            raise error
        return True

    follower = SimpleNamespace(
        name="copy",
        namespace="flights",
        heartbeat_s=0.01,
        failed=None,
        driven_by=None,
        step=step,
        beat=lambda: True,
        met=met.append,
        went_well=lambda **_: well.set(),
    )
    thread = FollowerThread(follower, lambda: False)
    try:
        assert well.wait(WAIT_S)
    finally:
        thread.stop()
    assert [str(error) for error in met] == ["a bug"]
