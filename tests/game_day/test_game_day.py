"""The fast incidents, in ``make full``; and what the frame reads in messages and sees in answers."""

import json
import re

import pytest

from game_day.incident import COMMAND, NOBODY, OPERATOR, Incident, Result, is_a_step, play
from game_day.incidents import ALL
from game_day.readers import Readers
from game_day.stream import Content, Generator, Sums, recount
from game_day.table import BEGIN, END, merge, table, write_page

FAST = [pytest.param(each, id=each.name) for each in ALL if each.fast]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("incident", FAST)
def test_a_fast_incident_ends_with_right_data(incident):
    if lacking := incident.missing():
        pytest.skip(lacking)
    result = play(incident)
    assert result.passed, result


def test_the_names_are_distinct_and_who_must_act_has_an_alert_or_a_plan():
    assert len({each.name for each in ALL}) == len(ALL)
    for each in ALL:
        assert each.actor == "nobody" or each.alert or each.note.startswith("planned"), each.name


def test_the_sums_of_the_input_are_those_of_its_files(tmp_path):
    generator = Generator(tmp_path / "input")
    for _ in range(3):
        generator.write()
    content = recount(generator.folder)
    assert content.totals == generator.expected(generator.last)
    assert max(seq for seq, _ in content.latest.values()) == generator.last


def test_files_of_a_burst_are_ordered_by_their_time(tmp_path):
    """Else a batch of Spark may have a newer file without an older one, and its sums fit no prefix."""
    generator = Generator(tmp_path / "input")
    times = [generator.write().stat().st_mtime_ns // 1_000_000 for _ in range(20)]
    assert times == sorted(set(times))


@pytest.mark.parametrize(
    "version, content, wrong",
    [
        (3, Content(Sums(2, 1, 1), {"k0": (0, 0), "k1": (1, 1)}), ""),
        (3, Content(Sums(2, 1, 1), {"k0": (0, 0)}), "torn"),
        (3, Content(Sums(3, 1, 1), {"k1": (1, 1)}), "sums are"),
        (2, Content(Sums(2, 1, 1), {"k1": (1, 1)}), "was answered after 3"),
    ],
)
def test_a_wrong_answer_is_noticed(tmp_path, version, content, wrong):
    generator = Generator(tmp_path / "input")
    generator.write()
    readers = Readers(lambda: None, generator)
    readers._noted("fresh", 0.0, 3, version, content)
    assert (wrong in "".join(readers.wrong)) if wrong else not readers.wrong


def test_a_result_passes_only_with_right_data_and_its_alert():
    result = Result("x", "title", "operator", right_s=1.0, recount="equal", expected_alert="A")
    assert not result.passed
    result.alerts = ["A"]
    assert result.passed
    result.wrong = ["torn"]
    assert not result.passed


def test_the_record_becomes_the_table_of_the_page(tmp_path):
    page, record = tmp_path / "page.md", tmp_path / "record.json"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    merge(record, Result("x", "title", "nobody", right_s=2.0, recount="equal"))
    merge(record, Result("x", "title", "nobody", right_s=3.0, recount="equal"))
    write_page(page, record)
    rows = table(json.loads(record.read_text()))
    assert rows.count("\n") == 3
    assert "| title | 0 | 3 | nobody | none needed | equal | none needed |" in page.read_text()
    assert "old" not in page.read_text()


def test_the_pattern_of_a_command():
    assert re.findall(COMMAND, "or run `tidegate recover --jobs 2` now") == ["recover --jobs 2"]
    assert re.findall(COMMAND, "`tidegate explain` with a title prints one") == []


@pytest.mark.parametrize(
    "actor, advice, counts",
    [
        (OPERATOR, "tidegate explain StoreUnavailableError", True),
        (NOBODY, "tidegate explain StoreUnavailableError", False),
        (NOBODY, "tidegate recover", True),
    ],
)
def test_an_explanation_is_a_step_only_where_an_operator_has_to_act(actor, advice, counts):
    assert is_a_step(Incident("x", "title", print, actor=actor), advice) is counts
