"""docs/histories.md has every rule, and every event with its fields."""

import re

from services.support.servers import ROOT
from tidegate.torture.history import events
from tidegate.torture.judge.verdict import RULES

PAGE = (ROOT / "docs" / "histories.md").read_text()


def test_every_rule():
    rows = re.findall(r"^\| `([a-z-]+)` \| (I\d+) \| (.*) \|$", PAGE, re.MULTILINE)
    assert {rule: invariant for rule, invariant, _ in rows} == {r: i for r, (i, _) in RULES.items()}
    for rule, _, text in rows:
        assert text.startswith(RULES[rule][1]), rule


def test_every_event_and_field():
    rows = {row.split("|")[1]: row for row in PAGE.splitlines() if row.startswith("| `")}
    for kind in events.AnyEvent.__args__:
        tag = kind.__struct_config__.tag
        row = next(row for first, row in rows.items() if f"`{tag}`" in first)
        for field in kind.__struct_fields__:
            assert field == "at" or f"`{field}`" in row, (tag, field)
    for field in events.Change.__struct_fields__:
        assert f"`{field}`" in PAGE
