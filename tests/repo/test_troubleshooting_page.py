"""docs/troubleshooting.md quotes messages that exist, and has every error; each alert has an entry."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

from tidegate.errors import BY_NAME
from tidegate.observe import metrics

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
MONITORING = (ROOT / "docs" / "monitoring.md").read_text()
SOURCES = ("wal", "committers", "sinks", "spark", "src/tidegate")


def texts():
    """Every string of the sources; the expressions of an f-string and ``%s`` are dots."""
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    yield "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values
                    )
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield re.sub(r"%[\d.]*[sdfg]", "...", node.value)


TEXTS = "\n".join(texts())
SEEN_AS = re.findall(r"^(?:- \*\*Seen as:\*\*|\| \").*(?:\n  .*)*", PAGE, re.MULTILINE)
QUOTED = sorted({" ".join(quoted.split()) for entry in SEEN_AS for quoted in re.findall(r'"([^"]+)"', entry)})


@pytest.mark.parametrize("quoted", QUOTED)
def test_each_quoted_message_exists(quoted):
    assert quoted in TEXTS


def test_many_are_quoted():
    assert len(QUOTED) >= 30


@pytest.mark.parametrize("name", sorted(BY_NAME.keys() - {"TidegateError"}))
def test_each_error_is_in_the_table(name):
    assert f"| `{name}` |" in PAGE


def test_each_metric_on_the_page_exists():
    assert set(re.findall(r"\btidegate_\w+", PAGE)) <= {metric.name for metric in metrics.ALL}


def test_each_alert_is_on_the_page_of_monitoring_with_its_entry():
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"]
    alerts = {rule["alert"] for group in rules for rule in group["rules"]}
    shown = re.findall(r"^\| `(Tidegate\w+)` \|.*troubleshooting\.md#", MONITORING, re.MULTILINE)
    assert set(shown) == alerts
    runbooks = {rule["alert"]: rule["annotations"]["runbook"] for group in rules for rule in group["rules"]}
    entries = dict(re.findall(r"^\| `(Tidegate\w+)` \| \[.*\]\((#\S+)\) \|$", PAGE, re.MULTILINE))
    assert {name: f"docs/troubleshooting.md{anchor}" for name, anchor in entries.items()} == runbooks
