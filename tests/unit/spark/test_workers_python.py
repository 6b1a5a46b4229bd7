"""The workers' Python is asked once, before the first job, if it is on this machine and another one."""

from __future__ import annotations

import json
import logging
import os
import sys
import types

import pytest

import tidegate
from tidegate.errors import ConfigError
from tidegate.spark.session import workers_python
from tidegate.spark.session.configure import configure
from tidegate.spark.session.workers_python import check_workers_python

HERE = list(sys.version_info[:2])


def context(python, master="local[2]", includes=()):
    return types.SimpleNamespace(master=master, pythonExec=str(python), _python_includes=list(includes))


@pytest.fixture
def python(tmp_path):
    """Makes a program that answers as another Python would, and counts how often it was asked."""

    def make(answer, then="exit 0"):
        path = tmp_path / "python3"
        path.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\necho '{answer}'\n{then}\n")
        path.chmod(0o755)
        return path

    return make


def answer(**other):
    return json.dumps({"python": HERE, "missing": [], "tidegate": tidegate.__version__, **other})


@pytest.mark.parametrize(
    "said, words",
    [
        ({"missing": ["tidegate", "msgspec"], "tidegate": ""}, "has no module tidegate"),
        ({"python": [3, 9]}, "it is Python 3.9"),
        ({"tidegate": "0.0.1"}, f"it has tidegate 0.0.1, the driver has {tidegate.__version__}"),
    ],
)
@pytest.mark.parametrize("master", ["local", "local[2]", "local-cluster[2,1,1024]"])
def test_a_python_that_does_not_fit_is_refused_with_the_way_out(python, said, words, master):
    path = python(answer(**said))
    with pytest.raises(ConfigError) as refused:
        check_workers_python(context(path, master))
    message = str(refused.value)
    assert f"would run {path}, the driver runs {sys.executable}: " in message
    assert words in message
    assert "call tidegate.spark.configure(SparkSession.builder) before getOrCreate" in message
    assert "\n" not in message


def test_a_python_that_fits_is_asked_once(python, tmp_path):
    path = python(answer())
    for _ in range(3):
        check_workers_python(context(path))
    assert (tmp_path / "asked").read_text() == "asked\n"


@pytest.mark.parametrize("more", [{"master": "spark://host:7077"}, {"includes": ["tidegate.zip"]}])
def test_a_python_elsewhere_or_one_that_gets_its_modules_from_the_driver_is_not_asked(python, tmp_path, more):
    check_workers_python(context(python(answer(missing=["tidegate"])), **more))
    assert not (tmp_path / "asked").exists()


def test_this_python_is_not_asked(monkeypatch):
    monkeypatch.setattr(workers_python, "_ask", lambda _: pytest.fail("it was asked"))
    check_workers_python(context(sys.executable))


def test_one_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="would run no-such-python, which is not on the PATH: call"):
        check_workers_python(context("no-such-python"))


@pytest.mark.parametrize("bad", ["not JSON", answer()])
def test_one_that_does_not_answer_is_a_warning(python, caplog, bad):
    """It may be a wrapper that only Spark can start: the job finds out."""
    with caplog.at_level(logging.WARNING, "tidegate"):
        check_workers_python(context(python(bad, "exit 3" if bad == answer() else "")))
    assert "does not report whether it has tidegate" in caplog.text


def test_the_question_has_an_answer():
    """Asked of this Python, by another name."""
    link = os.path.join(os.path.dirname(sys.executable), ".", os.path.basename(sys.executable))  # noqa: PTH118, PTH119, PTH120
    workers_python._ask(link)


@pytest.mark.parametrize("given", [None, types.SimpleNamespace(conf={})])
def test_configure_takes_a_builder_alone(given):
    with pytest.raises(ConfigError, match=r"call configure\(SparkSession.builder\)\.getOrCreate"):
        configure(given)
