"""The alert rules: promtool plays a case for each of them, deploy/prometheus/alerts_test.yml."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from support.prometheus import prometheus_program

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
RULES = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]


@pytest.mark.parametrize("words", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_promtool_passes(words):
    told = subprocess.run(
        [prometheus_program("promtool"), *words],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr


def test_each_alert_is_expected_in_a_case():
    expected = set(re.findall(r'alertname="(\w+)"', (FOLDER / "alerts_test.yml").read_text()))
    assert expected == {rule["alert"] for rule in RULES}


def test_a_counter_that_begins_at_1_fires_too():
    """increase() of a series with a single value is 0, and the error of a batch may have any class."""
    for rule in RULES:
        for counter in re.findall(r"increase\((\w+)\[15m\]\)", rule["expr"]):
            assert f"({counter} > 0 unless {counter} offset 15m)" in rule["expr"], rule["alert"]
