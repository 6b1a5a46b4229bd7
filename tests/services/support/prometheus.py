"""A real Prometheus with the rules of deploy/prometheus/alerts.yml, in seconds instead of minutes."""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from pathlib import Path

from services.support.leak_guard import Guarded
from services.support.servers import ROOT, free_ports
from support.prometheus import prometheus_program
from support.wait import wait_until

STEP_S = 100.0
RULES = ROOT / "deploy/prometheus/alerts.yml"
CONFIG = """
global: {{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 300ms}}
rule_files: [alerts.yml]
scrape_configs:
  - job_name: tidegate
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def shortened(rules: str) -> str:
    """The rules with seconds for minutes, in durations and in products with 60."""
    return re.sub(r"\b(\d+)m\b", r"\1s", rules).replace("* 60", "* 1")


class Prometheus:
    """A server that scrapes one port and evaluates the rules."""

    def __init__(self, folder: Path, target: int) -> None:
        folder.mkdir()
        (folder / "prometheus.yml").write_text(CONFIG.format(port=target))
        (folder / "alerts.yml").write_text(shortened(RULES.read_text()))
        (port,) = free_ports(1)
        self._api = f"http://127.0.0.1:{port}/api/v1"
        self._process = Guarded(
            [
                prometheus_program("prometheus"),
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            folder / "log",
        )

    def ask(self, query: str) -> list[dict[str, str]]:
        """Return the labels of the query's result; [] before the server answers."""
        try:
            with urllib.request.urlopen(
                f"{self._api}/query?query={urllib.parse.quote(query)}", timeout=10
            ) as answer:
                return [sample["metric"] for sample in json.load(answer)["data"]["result"]]
        except OSError:
            return []

    def firing(self) -> set[str]:
        return {labels["alertname"] for labels in self.ask('ALERTS{alertstate="firing"}')}

    def proposed(self) -> dict[str, str]:
        """Return the action of each alert that fires, with the values of its labels."""
        try:
            with urllib.request.urlopen(f"{self._api}/alerts", timeout=10) as answer:
                alerts = json.load(answer)["data"]["alerts"]
        except OSError:
            return {}
        firing = [alert for alert in alerts if alert["state"] == "firing"]
        return {alert["labels"]["alertname"]: alert["annotations"]["action"] for alert in firing}

    def wait(self, query: str) -> None:
        wait_until(lambda: self.ask(query), f"{query}; firing: {self.firing()}", STEP_S)

    def wait_for(self, *alerts: str) -> None:
        wait_until(lambda: set(alerts) <= self.firing(), f"{alerts}", STEP_S)

    def wait_without(self, *alerts: str) -> None:
        wait_until(lambda: not set(alerts) & self.firing(), f"no {alerts}", STEP_S)

    def close(self) -> None:
        self._process.kill()
