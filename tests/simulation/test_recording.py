"""A long run that is interrupted goes on, and its record sums up to the run."""

import io

import pytest
from rich.console import Console

from simulation.coverage import Tally
from simulation.plays.decode_cache import PURE, remembered
from simulation.progress import shown
from simulation.recording import Record, left, line_of
from simulation.run import main, played, run_schedules
from tidegate.committers.apply import apply

SEED = 12


def recorded(path):
    record = Record(path)
    for first in (0, 6, 3):
        indexes = range(first, first + 3)
        record.add(line_of(SEED, indexes, run_schedules(SEED, indexes), 1.5))
    return record


def total_of(lines):
    total = Tally()
    for line in lines:
        total.add(line.tally())
    return total


def test_the_lines_of_a_record_sum_up_to_one_run(tmp_path):
    lines = list(recorded(tmp_path / "run.jsonl").lines())
    assert [line.indexes for line in lines] == [range(3), range(6, 9), range(3, 6)]
    assert total_of(lines) == run_schedules(SEED, range(9))


def test_a_run_goes_on_behind_a_line_that_was_cut_off(tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    recorded(path)
    path.write_bytes(path.read_bytes()[:-20])
    command = ["--seed", str(SEED), "--schedules", "10", "--record", str(path)]
    assert main(command) == 0
    told = capsys.readouterr().out
    lines = list(Record(path).lines())
    assert [line.indexes for line in lines] == [range(3), range(6, 9), range(3, 6), range(9, 10)]
    assert total_of(lines) == run_schedules(SEED, range(10))
    assert told.endswith(f"{total_of(lines).report()}\n")
    before = path.read_bytes()
    assert main(command) == 0  # nothing is left to do
    assert path.read_bytes() == before


def test_many_schedules_do_not_show_what_their_drivers_log_and_one_alone_does(caplog):
    played(SEED, range(6, 8), None)
    assert not caplog.records
    played(SEED, range(7, 8), None)
    assert "simulated: " in caplog.text


def test_a_record_of_another_release_is_not_gone_on_with(tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    recorded(path)
    path.write_bytes(path.read_bytes().replace(b'"release":"', b'"release":"9'))
    assert main(["--seed", str(SEED), "--schedules", "10", "--record", str(path)]) == 2
    assert "line 1: it is of release 9" in capsys.readouterr().out


def test_no_chunk_begins_after_so_many_minutes(capsys):
    assert main(["--schedules", "100000", "--minutes", "0"]) == 0
    assert capsys.readouterr().out.startswith("0 schedules")


@pytest.mark.parametrize(
    "done,wanted",
    [
        ([], [range(4), range(4, 8), range(8, 10)]),
        ([range(4, 8)], [range(4), range(8, 10)]),
        ([range(8, 12), range(2)], [range(2, 6), range(6, 8)]),
        ([range(10, 20)], [range(4), range(4, 8), range(8, 10)]),
        ([range(20)], []),
    ],
)
def test_what_is_left_is_what_no_line_has(done, wanted):
    assert left(range(10), done, 4) == wanted


def test_off_a_terminal_progress_is_a_line_now_and_then():
    output = io.StringIO()
    with shown(100, 200, Console(file=output, force_terminal=False)) as progress:
        for schedules in (150, 200, 300):
            progress(Tally(schedules=schedules, versions=7))
    first, last = output.getvalue().splitlines()
    assert first.startswith("150 schedules, 7 versions, ")
    assert ["ends in" in line for line in (first, last)] == [True, False]


def test_on_a_terminal_progress_is_a_bar():
    output = io.StringIO()
    with shown(0, 10, Console(file=output, force_terminal=True)) as progress:
        progress(Tally(schedules=10))
    assert "10/10" in output.getvalue()


def test_what_is_remembered_says_the_same_and_is_forgotten():
    plain = [getattr(module, name) for module, name in PURE]
    decoded = apply.decode_frame
    with remembered():
        assert apply.decode_frame is not decoded
    assert [getattr(module, name) for module, name in PURE] == plain
