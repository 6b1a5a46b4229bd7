"""The record of hostile tenants has every attack of the suites, and no other."""

from pathlib import Path

import pytest

from services.support.hostile import SERVERS, rows

PAGE = (Path(__file__).parents[2] / "docs/records/hostile-tenants.md").read_text()


@pytest.mark.parametrize("server", SERVERS)
def test_the_page_and_the_table_agree(server):
    _, _, section = PAGE.partition(f"## Hostile tenants of {server.capitalize()}\n")
    shown = [line for line in section.partition("\n#")[0].splitlines() if line.startswith("|")]
    assert shown == rows(server), "tools/run python tests/services/support/hostile.py prints the tables"


def test_there_are_many():
    assert sum(len(rows(server)) - 2 for server in SERVERS) >= 40


def test_the_summary_has_their_number():
    summary = (Path(__file__).parents[2] / "SECURITY.md").read_text()
    count = sum(len(rows(server)) - 2 for server in SERVERS)
    assert f"[{count} attacks](docs/records/hostile-tenants.md)" in summary
