"""The report of a run: ``report.json`` for machines and ``report.html`` for people, from the same facts."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from tidegate.base import failpoints
from tidegate.torture.driver.faults import FAULTS
from tidegate.torture.outcome import MISSED, PROVEN, RESULTS, VIOLATED, Outcome
from tidegate.torture.report.page import PAGE
from tidegate.torture.run import Report
from tidegate.torture.schedule import FINISHES

LISTED_MAX = 100
"""The number of unproven cells that the page lists; the JSON lists all of them."""

FAULTS_ABREAST = 4
PLANNED = "a fault of the plan that was given"
"""The number of faults in each part of the crash table: a part is no wider than a page."""

Place = tuple[str, str, str]
"""Failpoint, fault, way of finishing."""


def write(report: Report) -> tuple[Path, Path]:
    """Write both files into the report's folder, replacing old ones; return their paths."""
    as_json, as_html = report.folder / "report.json", report.folder / "report.html"
    as_json.write_bytes(msgspec.json.format(msgspec.json.encode(facts_of(report))))
    as_html.write_text(page_of(report), encoding="utf-8")
    return as_json, as_html


def repeat_of(report: Report, outcome: Outcome) -> str:
    """Return the command that runs one cell again."""
    return f"{report.command} --only {outcome.cell}"


def facts_of(report: Report) -> dict[str, Any]:
    """Return the whole report as plain data."""
    totals = report.totals
    return {
        "asked": report.asked,
        "all_proven": report.all_proven,
        "stopped": report.stopped,
        "seconds": round(report.seconds, 1),
        "cells": len(totals.outcomes),
        "round": report.round_size,
        "results": dict(totals.results),
        "checked": dict(totals.counts),
        "errors": dict(totals.errors),
        "not_run": [skip._asdict() for skip in report.skipped],
        "command": f"{report.command}{report.limits}",
        "not_proven": [
            {"cell": str(outcome.cell), "repeat": repeat_of(report, outcome), "outcome": outcome}
            for outcome in totals.wrong
        ],
        "outcomes": totals.outcomes,
    }


# -- the page ------------------------------------------------------------------------------------------


def page_of(report: Report) -> str:
    """Render one self-contained page."""
    totals = report.totals
    began = datetime.datetime.fromtimestamp(report.asked.started_us / 1e6, datetime.timezone.utc)
    return PAGE.substitute(
        verdict=escape(verdict_of(report)),
        verdict_class="good" if report.all_proven else "bad" if totals.results[VIOLATED] else "open",
        log=escape(report.asked.wal),
        store=escape(report.asked.store),
        began=f"{began:%Y-%m-%d %H:%M} UTC",
        seconds=f"{report.seconds:,.0f}",
        seed=str(report.asked.seed),
        workloads=escape(", ".join(report.asked.workloads)),
        command=escape(f"{report.command}{report.limits}"),
        results=_results(report),
        checked=_pairs(totals.counts),
        errors=_pairs(totals.errors) or "<p>None.</p>",
        matrix=_matrix(report),
        wrong=_wrong(report),
        skipped=_skipped(report),
        words=_glossary(report),
    )


def verdict_of(report: Report) -> str:
    """Summarize the run in one sentence."""
    totals = report.totals
    ran = f"{len(totals.outcomes):,} cells"
    if report.all_proven:
        return f"Every promise held: {ran}, all proven."
    others = [
        f"{totals.results[name]:,} {name}" for name in RESULTS if name != PROVEN and totals.results[name]
    ]
    cut = "The run was interrupted. " if report.stopped else ""
    if not totals.outcomes:
        return f"{cut}No cell was run: nothing is proven."
    return f"{cut}{ran}: {totals.results[PROVEN]:,} proven" + "".join(f", {other}" for other in others) + "."


def _results(report: Report) -> str:
    totals = report.totals
    rows = [(name, f"{totals.results[name]:,}", text) for name, text in RESULTS.items()]
    ran = {(outcome.failpoint, outcome.fault, outcome.finish) for outcome in totals.outcomes}
    not_run = max(0, report.round_size - len(ran))
    impossible = sum(skip.cells for skip in report.skipped)
    rows += [
        ("not run", f"{not_run:,}", "cells of the crash table that this run did not come to: a dot below"),
        (
            "not possible",
            f"{impossible:,}",
            "cells of the crash table that are not possible here: listed below",
        ),
    ]
    return "".join(
        f"<tr><th>{escape(name)}</th><td class=number>{number}</td><td>{escape(text)}</td></tr>"
        for name, number, text in rows
    )


def _pairs(counts: Counter[str]) -> str:
    return "".join(
        f"<span class=pair><b>{number:,}</b> {escape(name)}</span>" for name, number in sorted(counts.items())
    )


def _matrix(report: Report) -> str:
    """Render failpoint x fault x way of finishing, a table for each few faults: proven cells, of all."""
    every: Counter[Place] = Counter()
    proven: Counter[Place] = Counter()
    broken: Counter[Place] = Counter()
    for outcome in report.totals.outcomes:
        place = outcome.failpoint, outcome.fault, outcome.finish
        every[place] += 1
        proven[place] += outcome.result == PROVEN
        broken[place] += outcome.result == VIOLATED
    impossible = {skip.fault for skip in report.skipped if not skip.failpoint}
    possible = {*report.asked.faults} - impossible | {place[1] for place in every}
    faults = [fault for fault in _described(report) if fault in possible]
    parts = [
        _part(faults[first : first + FAULTS_ABREAST], every, proven, broken)
        for first in range(0, len(faults), FAULTS_ABREAST)
    ]
    return "".join(f'<div class="wide"><table class="matrix">{part}</table></div>' for part in parts)


def _part(
    faults: Sequence[str], every: Counter[Place], proven: Counter[Place], broken: Counter[Place]
) -> str:
    head = "".join(
        f'<th colspan="{len(FINISHES)}" title="{escape(FAULTS.get(f, PLANNED))}">{escape(f)}</th>'
        for f in faults
    )
    ways = "".join(f'<th class=way title="{escape(FINISHES[w])}">{w}</th>' for w in FINISHES) * len(faults)
    rows = []
    for name in failpoints.NAMES:
        cells = "".join(
            _square(proven[name, fault, way], every[name, fault, way], broken[name, fault, way])
            for fault in faults
            for way in FINISHES
        )
        rows.append(f"<tr><th class=failpoint>{escape(name)}</th>{cells}</tr>")
    return (
        f"<thead><tr><th rowspan=2>failpoint</th>{head}</tr><tr>{ways}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody>"
    )


def _square(proven: int, every: int, broken: int) -> str:
    if not every:
        return "<td class=none>·</td>"
    if proven == every:
        return f"<td class=good>{every}</td>"
    return f"<td class={'bad' if broken else 'open'}>{proven}/{every}</td>"


def _wrong(report: Report) -> str:
    wrong = report.totals.wrong
    if not wrong:
        return "<p>None.</p>"
    more = f"<p>{len(wrong) - LISTED_MAX:,} more are in report.json.</p>" if len(wrong) > LISTED_MAX else ""
    return "".join(_one_wrong(report, outcome) for outcome in wrong[:LISTED_MAX]) + more


def _one_wrong(report: Report, outcome: Outcome) -> str:
    lines = []
    for finding in outcome.findings[:10]:
        rule = escape(f"{finding.invariant} {finding.rule}".strip())
        lines.append(f"<li><b>{rule}</b>: {escape(finding.what)}")
        if finding.expected or finding.seen:
            lines.append(f"<br>expected: {escape(finding.expected)}<br>seen: {escape(finding.seen)}")
        if finding.events:
            lines.append(f"<br><small>{escape(', '.join(finding.events))}</small>")
        lines.append("</li>")
    if len(outcome.findings) > 10:
        lines.append(f"<li>{len(outcome.findings) - 10} more</li>")
    lines += [f"<li>{escape(text)}</li>" for text in outcome.unproven[:10]]
    if outcome.result == MISSED:
        lines.append("<li>no driver reached the failpoint at the hit for which the fault was set</li>")
    return (
        f"<article class={'bad' if outcome.result == VIOLATED else 'open'}>"
        f"<h3>{escape(outcome.result)}: {escape(str(outcome.cell))}</h3><ul>{''.join(lines)}</ul>"
        f"<p>Again: <code>{escape(repeat_of(report, outcome))}</code><br>"
        f'History: <a href="{escape(outcome.history)}/">{escape(outcome.history)}</a></p></article>'
    )


def _skipped(report: Report) -> str:
    if not report.skipped:
        return "<p>None: every cell is possible here.</p>"
    reasons: dict[str, list[str]] = {}
    cells: Counter[str] = Counter()
    for skip in report.skipped:
        group = skip.failpoint or f"every failpoint: {skip.fault}"
        if group not in reasons.setdefault(skip.reason, []):
            reasons[skip.reason].append(group)
        cells[skip.reason] += skip.cells
    rows = "".join(
        f"<tr><td class=number>{cells[reason]:,}</td><td>{escape(', '.join(groups))}</td>"
        f"<td>{escape(reason)}</td></tr>"
        for reason, groups in reasons.items()
    )
    return (
        f"<table><thead><tr><th>cells</th><th>what</th><th>why</th></tr></thead><tbody>{rows}</tbody></table>"
    )


def _described(report: Report) -> dict[str, str]:
    """Return the description of each fault, those of the user's plan last."""
    return FAULTS | {fault: PLANNED for fault in report.asked.faults if fault not in FAULTS}


def _glossary(report: Report) -> str:
    pairs: Sequence[tuple[str, str]] = [*_described(report).items(), *FINISHES.items()]
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in pairs)
