"""The rows of a game day: as lines, as a JSON record, and as the table of docs/game-day.md."""

from __future__ import annotations

import dataclasses
import datetime
import json
from pathlib import Path
from typing import Any

from game_day.incident import Result

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
HEAD = (
    "| incident | without answers, s | right after, s | who acts | first advice enough | recount | alert |"
    " played |\n|---|---|---|---|---|---|---|---|\n"
)


def line(result: Result) -> str:
    """Return a result as text for a terminal."""
    lines = [
        f"{'ok    ' if result.passed else 'NOT OK'} {result.name}: {result.title}",
        f"  without answers {result.away_by_reader}, right after {result.right_s} s",
        f"  recount {result.recount}",
        f"  advice: {result.first_advice_enough} {result.steps}",
        f"  alerts {result.alerts} (must: {result.expected_alert})",
    ]
    if result.steps:
        lines.append(f"  first message: {result.first_message}")
    return "\n".join([*lines, *(f"  wrong: {text}" for text in result.wrong)])


def merge(record: Path, result: Result) -> None:
    """Put a row into the record, in place of an older one of the same incident."""
    rows: dict[str, Any] = json.loads(record.read_text()) if record.exists() else {}
    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    rows[result.name] = {**dataclasses.asdict(result), "passed": result.passed, "day": day}
    record.write_text(json.dumps(rows, indent=1) + "\n")


def table(rows: dict[str, Any]) -> str:
    """Return the record's rows as a table of Markdown."""
    return HEAD + "".join(f"| {' | '.join(_cells(row))} |\n" for row in rows.values())


def _cells(row: dict[str, Any]) -> list[str]:
    alert = row["expected_alert"] or "none needed"
    if row["expected_alert"] and row["expected_alert"] not in row["alerts"]:
        alert = f"**{alert} did not fire**"
    steps = ", then ".join(f"`{step}`" if step.startswith("tidegate") else step for step in row["steps"])
    advice = row["first_advice_enough"] + (f": {steps}" if steps else "")
    right = "**no**" if row["right_s"] is None else f"{row['right_s']:.0f}"
    recount = row["recount"] if row["recount"] == "equal" else f"**{row['recount']}**"
    if row["wrong"]:
        recount += f"; **wrong answers: {row['wrong'][0]}**"
    title = row["title"] + (f" ({row['note']})" if row["note"] else "")
    return [title, f"{row['away_s']:.0f}", right, row["actor"], advice, recount, alert, row["day"]]


def write_page(page: Path, record: Path) -> None:
    """Replace the table between the marks of a page."""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{table(json.loads(record.read_text()))}\n{END}{after}")
