"""A broker that cannot be reached: every method of the log says so in time, and works again when it can."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from services.support.kafka.query import Query
from support.wait import wait_until
from tidegate.errors import OutcomeUnknownError, WalUnavailableError

pytest_plugins = ["services.support.kafka.proxied"]
pytestmark = pytest.mark.xdist_group("kafka-proxied")

TIMEOUT_S = 3.0
IN_TIME_S = 3 * TIMEOUT_S + 3
"""A call may ask for several things; after the first that has no answer at most one more is asked."""
UNKNOWN = (WalUnavailableError, OutcomeUnknownError)
HANGS_S = 60.0


class Used:
    """An instance of a log, and a call of each of its methods with what it is known to hold."""

    def __init__(self, query):
        self._query = query
        maker = query.log()
        maker.create()
        self.second = [maker.append_decision(b"record %d" % nth) for nth in range(3)][1]
        self.addresses = maker.stage("early", [b"x", b"y"])
        self.log = query.log(timeout_s=TIMEOUT_S)

    def calls(self):
        log = self.log
        return {
            "create": log.create,
            "append_decision": lambda: log.append_decision(b"more"),
            "decisions": lambda: list(log.decisions()),
            "stage": lambda: log.stage("more", [b"z"]),
            "read": lambda: list(log.read(self.addresses)),
            "trim_decisions": lambda: log.trim_decisions(self.second.position),
            "trim_blobs": lambda: log.trim_blobs(self.addresses, 0),
            "size": log.size,
            "checks": log.checks,
            "retention_s": log.retention_s,
        }

    def all_at_once(self, **more):
        """What became of each call: how long it took, and its error if any."""

        def timed(call):
            start = time.monotonic()
            try:
                call()
            except Exception as error:  # noqa: BLE001 - the test looks at it
                return time.monotonic() - start, error
            return time.monotonic() - start, None

        calls = self.calls() | more
        with ThreadPoolExecutor(len(calls)) as pool:
            running = {name: pool.submit(timed, call) for name, call in calls.items()}
            return {name: future.result(HANGS_S) for name, future in running.items()}

    def all_work(self):
        """Each call, with its short deadline, as soon as clients and brokers have found each other again."""
        failed = {}

        def none_fails():
            failed.clear()
            failed.update({name: error for name, (_, error) in self.all_at_once().items() if error})
            assert all(isinstance(error, UNKNOWN) for error in failed.values()), failed
            return not failed

        with contextlib.suppress(TimeoutError):
            wait_until(none_fails, "all calls work")
        assert not failed
        assert {found.content for found in self.log.read(self.addresses)} == {b"x", b"y"}

    def none_works(self):
        for name, (took, error) in self.all_at_once(drop=self.log.drop).items():
            expected = UNKNOWN if name == "append_decision" else WalUnavailableError
            assert isinstance(error, expected), (name, error)
            assert took < IN_TIME_S, (name, took)


@pytest.fixture
def used(proxied_kafka, tmp_path):
    query = Query(proxied_kafka.bootstrap, tmp_path)
    yield Used(query)
    query.close()


@contextlib.contextmanager
def out(proxy, how):
    getattr(proxy, how)()
    if how == "refuse":
        proxy.cut()
    try:
        yield
    finally:
        proxy.accept()
        proxy.cut()


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("how", ["refuse", "black_hole"])
def test_unreachable_for_a_while(proxied_kafka, used, how):
    used.all_work()
    with out(proxied_kafka.proxy, how):
        used.none_works()
    used.all_work()


@pytest.mark.parametrize("how", [pytest.param("refuse", marks=pytest.mark.slow), "black_hole"])
def test_unreachable_from_the_start(proxied_kafka, used, how):
    with out(proxied_kafka.proxy, how):
        used.none_works()
    used.all_work()


def test_closing_does_not_wait(proxied_kafka, used):
    used.all_work()
    with out(proxied_kafka.proxy, "black_hole"):
        start = time.monotonic()
        used.log.close()
        assert time.monotonic() - start < IN_TIME_S
    used.all_work()
