"""Spark's check of shuffles that are made again is on while a job runs, and as before afterwards."""

from __future__ import annotations

import pytest

from tidegate.spark.session.whole_retries import OPTIONS, WholeRetries

OFF = dict.fromkeys(OPTIONS, "false")
ON = dict.fromkeys(OPTIONS, "true")


class Session:
    """A session's options: those that are set, and the defaults of the options that Spark has."""

    def __init__(self, defaults, **settings):
        self.conf, self.defaults, self.settings = self, defaults, settings

    def get(self, name, *default):
        assert name in self.defaults, "an error of the JVM: 20 ms for each job"
        return self.settings.get(name, *(default or [self.defaults[name]]))

    def isModifiable(self, name):  # noqa: N802 - PySpark's
        return name in self.defaults

    def set(self, name, value):
        self.settings[name] = value

    def unset(self, name):
        del self.settings[name]


@pytest.mark.parametrize("settings", [{}, OFF, {OPTIONS[0]: "false"}, {OPTIONS[1]: "TRUE"}, ON])
@pytest.mark.parametrize("defaults", [OFF, ON])
def test_the_options_are_on_within_and_as_before_afterwards(defaults, settings):
    session, retries = Session(defaults, **settings), WholeRetries()
    for _ in range(2):
        with retries([session, session]):
            assert {**defaults, **session.settings} == ON
        assert session.settings == settings


def test_a_job_that_ends_first_switches_nothing_off_for_another_job_of_the_session():
    session, other, retries = Session(OFF), Session(OFF), WholeRetries()
    first, second = retries([session]), retries([session, other])
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert session.settings == other.settings == ON
    second.__exit__(None, None, None)
    assert session.settings == other.settings == {}


@pytest.mark.parametrize("missing", OPTIONS)
def test_a_release_without_an_option_is_left_as_it_is(missing):
    session, retries = Session({name: "false" for name in OPTIONS if name != missing}), WholeRetries()
    with retries([session]):
        assert session.settings == {name: "true" for name in OPTIONS if name != missing}
    assert session.settings == {}
