"""The record of hostile tenants has every attack of the suites, and no other."""

from pathlib import Path

import pytest

from services.support.hostile import SERVERS, rows

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/records/hostile-tenants.md").read_text()


@pytest.mark.parametrize("server", SERVERS)
def test_the_page_and_the_table_agree(server):
    _, _, section = PAGE.partition(f"## Hostile tenants of {server.capitalize()}\n")
    shown = [line for line in section.partition("\n#")[0].splitlines() if line.startswith("|")]
    assert shown == rows(server), "tools/run python tests/services/support/hostile.py prints the tables"


def test_there_are_many():
    assert sum(len(rows(server)) - 2 for server in SERVERS) >= 40


@pytest.mark.parametrize(
    "page, record",
    [
        ("SECURITY.md", "docs/records/hostile-tenants.md"),
        ("docs/threat-model.md", "records/hostile-tenants.md"),
    ],
)
def test_the_summaries_have_their_number(page, record):
    count = sum(len(rows(server)) - 2 for server in SERVERS)
    assert f"[{count} attacks]({record})" in (ROOT / page).read_text()


def test_the_page_of_reports_links_to_the_model():
    assert "(docs/threat-model.md)" in (ROOT / "SECURITY.md").read_text()
