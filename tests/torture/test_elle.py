"""Histories in Elle's form: https://github.com/jepsen-io/elle, list-append."""

import doctest
import re

import pytest

import elle
import write_histories
from elle import export
from generate_histories import NAMESPACE, Made
from tidegate.errors import ConfigError
from tidegate.torture.history import events
from write_histories import write


def offered(call, batch, **lists):
    return write_histories.offered(call, batch, events.Change(table="lists", append=lists))


def exported(folder):
    return "".join(export(folder, NAMESPACE, "lists"))


def test_the_documented_form(tmp_path):
    write(
        tmp_path,
        offered(1, 0, x=[1], y=[2, 3]),
        events.Returned(call=1, version=1),
        events.SnapshotOpened(client=1, snapshot=1, version=1, began=0),
        events.Read(client=1, snapshot=1, table="lists", found={"x": [1]}, absent=["z"], began=0),
        events.Read(client=1, snapshot=1, table="others", found={"x": 7}, began=0),
        events.Read(client=1, table="lists", found={"y": [2, 3]}, began=0),
    )
    appends = '[[:append "x" 1] [:append "y" 2] [:append "y" 3]]'
    assert exported(tmp_path).splitlines() == [
        f"{{:index 0, :time 30, :type :invoke, :process 0, :f :txn, :value {appends}}}",
        f"{{:index 1, :time 40, :type :ok, :process 0, :f :txn, :value {appends}}}",
        '{:index 2, :time 45, :type :invoke, :process 1, :f :txn, :value [[:r "x" nil] [:r "z" nil]]}',
        '{:index 3, :time 60, :type :ok, :process 1, :f :txn, :value [[:r "x" [1]] [:r "z" nil]]}',
        '{:index 4, :time 75, :type :invoke, :process 2, :f :txn, :value [[:r "y" nil]]}',
        '{:index 5, :time 80, :type :ok, :process 2, :f :txn, :value [[:r "y" [2 3]]]}',
    ]


def types(folder):
    return re.findall(r":type :(\w+)", exported(folder))


def test_how_batches_end(tmp_path):
    raised = events.Raised(call=1, error="ConflictError")
    unknown = events.Raised(call=1, error="OutcomeUnknownError")
    again = [offered(2, 0, x=[1]), events.Returned(call=2, version=1)]
    other = [offered(2, 0, x=[9]), events.Returned(call=2, version=1)]
    own = [offered(2, 0, x=[9]), events.Returned(call=2, version=1, own=True)]
    assert types(write(tmp_path, offered(1, 0, x=[1]))) == ["invoke"]
    assert types(write(tmp_path, offered(1, 0, x=[1]), unknown)) == ["invoke"]
    assert types(write(tmp_path, offered(1, 0, x=[1]), raised)) == ["invoke", "fail"]
    assert types(write(tmp_path, offered(1, 0, x=[1]), raised, *again)) == ["invoke", "ok"]
    assert types(write(tmp_path, offered(1, 0, x=[1]), *other)) == ["invoke", "invoke"]
    assert types(write(tmp_path, offered(1, 0, x=[1]), *own)) == ["invoke", "invoke", "ok"]
    assert types(write(tmp_path, offered(1, 0), events.Returned(call=1, version=1))) == []


def test_the_past_and_other_stores_are_left_out(tmp_path):
    write(
        tmp_path,
        events.Connected(client=2, namespace=NAMESPACE, store="copy"),
        events.SnapshotOpened(client=1, snapshot=1, version=1, asked=1, began=0),
        events.Read(client=1, snapshot=1, table="lists", absent=["x"], began=0),
        events.Read(client=2, table="lists", absent=["x"], began=0),
    )
    assert exported(tmp_path) == ""


def test_what_elle_cannot_take_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="two batches"):
        exported(write(tmp_path, offered(1, 0, x=[1]), offered(2, 1, x=[1])))
    with pytest.raises(ConfigError, match="whole numbers"):
        exported(write(tmp_path, offered(1, 0, x=[1.5])))
    rows = offered(1, 0, x=[1])
    rows.changes[0].rows = {"x": 1}
    with pytest.raises(ConfigError, match="no appends"):
        exported(write(tmp_path, rows))


def test_a_history_as_drivers_and_readers_make_it(tmp_path):
    """Each process invokes once and ends at most once, in the order of time."""
    for seed in range(10):
        folder = Made(seed, steps=200).write(tmp_path / str(seed))
        times, ended = [], {}
        for at, line in enumerate(exported(folder).splitlines()):
            index, time, kind, process = re.match(
                r"{:index (\d+), :time (\d+), :type :(\w+), :process (\d+), ", line
            ).groups()
            assert int(index) == at
            assert kind in ("invoke", "ok", "fail")
            assert ended.get(process) == (None if kind == "invoke" else "invoke")
            ended[process] = kind
            times.append(int(time))
        assert times == sorted(times)
        assert "ok" in ended.values()


def test_the_examples_are_right():
    assert doctest.testmod(elle).failed == 0
