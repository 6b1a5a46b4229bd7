"""Whose turn it is with a sink: one thread's, and who waits is never left waiting without a word."""

import threading

import pytest

from tidegate.errors import ConfigError
from tidegate.spark import lock
from tidegate.spark.lock import SinkLock


def test_who_asks_again_is_refused_at_once():
    held = SinkLock()
    with held, pytest.raises(ConfigError, match="in the middle of a batch or a load"), held:
        pass
    with held:
        pass


def test_a_thread_that_the_one_before_waits_for_is_told_of_and_refused(monkeypatch, caplog):
    """As in a function of sink.each that asks a pool of threads for a load, and waits for it."""
    monkeypatch.setattr(lock, "WARN_AFTER_S", 0.01)
    monkeypatch.setattr(lock, "WAIT_MAX_S", 0.03)
    held, refused = SinkLock(), []

    def load():
        with pytest.raises(ConfigError, match="outside of it") as raised, held:
            pass
        refused.append(str(raised.value))

    with held:
        loading = threading.Thread(target=load)
        loading.start()
        loading.join(20)
    assert f"{threading.current_thread().name!r}" in refused[0]
    assert "waits for a batch or a load" in caplog.text


def test_who_waits_a_while_comes_in(monkeypatch):
    monkeypatch.setattr(lock, "WARN_AFTER_S", 0.01)
    held, came = SinkLock(), threading.Event()

    def load():
        with held:
            came.set()

    loading = threading.Thread(target=load)
    with held:
        loading.start()
        assert not came.wait(0.05)
    loading.join(20)
    assert came.is_set()
