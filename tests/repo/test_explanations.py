"""`tidegate explain` knows docs/troubleshooting.md, each alert, and the messages that advise something."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from tidegate.cli.inspect.explain import fitting_entries
from tidegate.errors import BY_NAME, advises

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))

import explanations  # noqa: E402 - it is a tool, no package

RULES = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"][0]["rules"]


def test_its_data_are_those_of_the_page():
    assert explanations.DATA.read_text() == explanations.data(), "tools/run python tools/explanations.py"


def test_the_page_has_many_entries():
    assert len(explanations.entries(explanations.PAGE.read_text())) >= 40


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_each_alert_leads_to_its_runbook(rule):
    anchors = [entry.anchor for entry in fitting_entries(rule["alert"])]
    assert anchors == [rule["annotations"]["runbook"].partition("#")[2]]


def test_each_message_that_advises_something_is_found_by_its_error():
    messages = [message for message in explanations.all_messages() if message.error in BY_NAME]
    assert len(messages) > 200
    unknown = [message for message in messages if not fitting_entries(f"{message.error}: {message.text}")]
    assert [message for message in unknown if message.error != "TidegateError"] == []


def test_messages_without_an_entry_of_their_own_only_become_fewer():
    assert explanations.ALLOWED.read_text() == explanations.allowance(), (
        "quote a new message in docs/troubleshooting.md, then tools/run python tools/explanations.py"
    )


def test_the_class_of_a_message_with_advice_adds_none():
    """A printed error has one next step: a second one may contradict it."""
    assert [message for message in explanations.all_messages() if not advises(message.text)] == []


def test_a_message_without_an_entry_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(explanations, "ROOT", tmp_path)
    path = tmp_path / "new.py"
    path.write_text('def f(x):\n    msg = f"{x} is odd: set another"\n    raise ConfigError(msg)\n')
    assert list(explanations.messages(path)) == [("new.py", "ConfigError", "... is odd: set another")]
