"""The command explain: which entry it prints for a text or a name, and what it prints when none fits."""

from __future__ import annotations

import pytest

from support.cli import done, done_json, run
from tidegate.cli.inspect.explain import NEAREST
from tidegate.errors import BY_NAME

TRACE = """py4j.protocol.Py4JJavaError: An error occurred while calling o123.start.
  File "/venv/tidegate/wal/fold.py", line 12, in fold
tidegate.errors.WalGapError: /data/wal: version 3 of /data/store is visible, the log ends at version 2
"""


LOGIN, SILENT = "A right or a login is missing", "The store does not answer"


@pytest.mark.parametrize("name", sorted(BY_NAME.keys() - {"TidegateError"}))
def test_each_error_class_has_an_entry(name):
    told = done("explain", name)
    assert "**Do:**" in told or "| do |" in told or told.count("docs/troubleshooting.md#") > NEAREST


@pytest.mark.parametrize("name", ["ConfigError", "tidegate.errors.ConfigError"])
def test_a_class_with_many_entries_is_answered_by_all_titles(name):
    """The alert of a failed batch names the class alone; three entries of it were chosen by nothing."""
    told = done("explain", name)
    assert f"{LOGIN} (docs/" in told
    assert told.count("docs/troubleshooting.md#") > NEAREST


def test_the_usual_entry_of_a_class_is_printed_whole():
    assert "`tidegate doctor --store URL` shows what answers" in done("explain", "StoreUnavailableError")


@pytest.mark.parametrize(
    "text, title",
    [
        ("TidegateLag", "Versions are decided and not visible"),
        ("tidegate_fenced_total", "A driver was fenced"),
        ("CommitStuck", "A commit is stuck"),
        (TRACE, "The log lost records"),
        ("ALARM: version 12 of flights is stuck: apply has taken 61 s", "A commit is stuck"),
        ("ConfigError: redis://cache: this user lacks the right +get", "A right or a login is missing"),
        ("ConfigError: store: Bad credentials; check username and password of the store's URL", LOGIN),
        ("ConfigError: kafka://b: refused; check security.protocol, sasl.* and ssl.* of the log's", LOGIN),
        ("StoreUnavailableError: redis://r: Error 111 connecting to r:1. Connection refused.", SILENT),
        ("StoreUnavailableError: cassandra://c: Unable to connect to any servers", SILENT),
        ("the store grows", "The store grows"),
        ("the-store-grows", "The store grows"),
    ],
)
def test_a_text_leads_to_its_entry(text, title):
    assert done("explain", text).startswith(f"{title} (docs/troubleshooting.md#")


@pytest.mark.parametrize("name", ["Py4JJavaError", "PythonException", "AnalysisException", "MyError"])
def test_a_class_that_is_not_ours_leads_to_the_failed_query(name):
    """The alert of a failed batch names the class alone."""
    assert run("explain", name).output.startswith("A query has failed ")


def test_words_need_no_quotes():
    assert done("explain", "too", "many", "leases").startswith("Too many leases")


def test_a_log_is_read_from_standard_input():
    result = run("explain", typed=TRACE)
    assert (result.exit_code, result.stdout.startswith("The log lost records")) == (0, True)


def test_the_nearest_entries_are_named_when_none_fits():
    result = run("explain", "my redis has no memory any more")
    assert (result.exit_code, result.stdout) == (1, "")
    assert '"The store is full"' in result.stderr
    assert run("explain", "--json", "zzzz").exit_code == 1


def test_json_has_the_whole_entry():
    answer = done_json("explain", "TidegateFenced")
    assert answer["fits"]
    assert [entry["anchor"] for entry in answer["entries"]] == ["a-driver-was-fenced"]


def test_no_text_is_refused():
    result = run("explain", typed="\n")
    assert result.exit_code == 2
    assert "give the text of an error" in result.stderr


@pytest.mark.parametrize("part", ["the key is (", "tidegate: ConfigError: ", ": it "])
def test_a_whole_log_is_answered(part):
    """A search with a place for any text between the parts took minutes for 20 KB."""
    run("explain", part * 100_000)
