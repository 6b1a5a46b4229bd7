"""The examples in docs/state.md do what they say, pasted as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).parents[2] / "docs" / "state.md").read_text()


def test_the_four_kinds_of_state_in_one_version(stream):
    pasted: dict = {"__name__": "__main__"}  # so that workers get the functions themselves
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(code, pasted)
    flights = stream("user string, page string, ms bigint")
    rows = [{"user": f"u{n % 3}", "page": f"p{n:02}", "ms": n * 37 % 100} for n in range(40)]
    flights.commit(flights.sink(parallelism=3).each(pasted["write"]), rows[:25], rows[25:])
    flights.commit(flights.sink(parallelism=2).each(pasted["write"]), [])
    assert flights.version() == 3
    assert flights.rows("visits") == {
        "u0": {"count": 14, "told": True},
        "u1": {"count": 13, "told": True},
        "u2": {"count": 13, "told": True},
    }
    assert flights.rows("regulars").keys() == {"u0", "u1", "u2"}
    assert flights.rows("users") == {"u0": {"page": "p39"}, "u1": {"page": "p37"}, "u2": {"page": "p38"}}
    assert flights.rows("pages")["p07"] == {"ms": 59, "user": 1}
    slowest = sorted(rows, key=lambda row: (-row["ms"], row["page"]))[:3]
    flights.commit(flights.sink(parallelism=3).each(pasted["write_top"]), rows)
    top = [item["page"] for item in flights.rows("_local.top").values()]
    assert sorted(top) == sorted(row["page"] for row in sorted(rows, key=lambda row: -row["ms"])[:10])
    with flights.gate() as gate:
        assert pasted["slowest_of_all"](gate) == [{"page": row["page"], "ms": row["ms"]} for row in slowest]
