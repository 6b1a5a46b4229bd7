"""One incident: the disaster, the first advice that somebody reads, and the judgement."""

from __future__ import annotations

import dataclasses
import re
import shlex
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from game_day.rig import Message, Rig
from support.wait import wait_until

NOBODY, OPERATOR = "nobody", "operator"
STEPS = 5
SETTLE_S = 25.0
"""How long an operator waits after a step, before the next message is read."""
RECOUNT_S = 60.0
COMMAND = r"`tidegate (?!explain`)([^`]+)`"
"""A command in a message; `tidegate explain` alone only names one."""


@dataclasses.dataclass(frozen=True)
class Incident:
    """``play`` makes the disaster on a rig whose readers have answers, and returns when it is complete.

    store, log: factories of servers by their folder; without them SQLite and files. actor: the one who must
    act. alert: the alert that must fire; None: none needed. deadline_s: the longest time from the complete
    disaster until the data are right. patience_s: how long the operator waits for tidegate to help itself,
    while readers have no answers or old ones. options: of the driver's sink; job: other fields of
    ``rig.Job``. fast: part of ``--third``.
    """

    name: str
    title: str
    play: Callable[[Rig], None]
    store: Callable[[Path], Any] | None = None
    log: Callable[[Path], Any] | None = None
    actor: str = NOBODY
    alert: str | None = None
    deadline_s: float = 120.0
    patience_s: float = 15.0
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    job: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fast: bool = False
    note: str = ""
    not_here: str = r"$^"
    """A pattern of advice that its message limits to another set-up."""
    environment: Callable[[Path], dict[str, str]] | None = None
    """The variables of the first driver's process; it may write into the folder of the incident."""
    missing: Callable[[], str] = lambda: ""
    """What this machine lacks for the incident; '': nothing. Without it the incident is not played."""
    right: Callable[[Rig], str] | None = None
    """Another final judgement than "the recount equals the store": the error's text, or an empty one."""


@dataclasses.dataclass
class Result:
    """A row of the table."""

    name: str
    title: str
    actor: str
    away_s: float = 0.0
    away_by_reader: dict[str, float] = dataclasses.field(default_factory=dict)
    right_s: float | None = None
    steps: list[str] = dataclasses.field(default_factory=list)
    first_message: str = ""
    first_advice_enough: str = "none needed"
    recount: str = ""
    alerts: list[str] = dataclasses.field(default_factory=list)
    expected_alert: str | None = None
    wrong: list[str] = dataclasses.field(default_factory=list)
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the data are right, no reader saw a wrong answer, and who must act was alerted."""
        alerted = self.expected_alert is None or self.expected_alert in self.alerts
        return self.right_s is not None and self.recount == "equal" and not self.wrong and alerted


def play(incident: Incident, report: Callable[[str], None] = print, *, patience: float = 1.0) -> Result:
    """Play one incident in a temporary folder, and end all its processes.

    ``patience`` multiplies the times that an operator and the judgement wait, for a busy machine.
    """
    result = Result(
        incident.name, incident.title, incident.actor, expected_alert=incident.alert, note=incident.note
    )
    with tempfile.TemporaryDirectory(prefix="tidegate-game-", ignore_cleanup_errors=True) as folder:
        options, job = dict(incident.options), dict(incident.job)
        rig = Rig(
            Path(folder),
            incident.store,
            incident.log,
            options=options,
            job=job,
            environment=incident.environment,
        )
        with rig:
            rig.begin(patience)
            _Play(incident, rig, result, report, patience).run()
    return result


def is_a_step(incident: Incident, name: str) -> bool:
    """Whether advice counts: an explanation that is read while tidegate helps itself does not."""
    return incident.actor == OPERATOR or not name.startswith("tidegate explain")


class _Play:
    def __init__(
        self, incident: Incident, rig: Rig, result: Result, report: Callable[[str], None], patience: float
    ) -> None:
        self._patience = patience
        self._incident, self._rig, self._result, self._report = incident, rig, result, report
        self._began = self._target = 0.0
        self._alerts: set[str] = set()
        self._followed: list[str] = []
        """The advice that was carried out, with explanations that nobody had to read."""
        self._asked: list[tuple[str, ...]] = []
        """The commands that were run for want of advice."""
        self._may_end = False
        """Whether the query ran at the last step, and may still end by what was wrong before it."""
        self._end = threading.Event()

    def run(self) -> None:
        rig, result = self._rig, self._result
        before = rig.prometheus.firing()
        self._began = time.monotonic()
        threading.Thread(target=self._watch_alerts, daemon=True).start()
        self._incident.play(rig)
        self._report(f"{self._incident.name}: the disaster took {time.monotonic() - self._began:.1f} s")
        right_at = self._until_right()
        if right_at is not None:
            result.right_s = round(right_at - self._began, 1)
        if result.steps:
            result.first_advice_enough = "yes" if right_at is not None and len(result.steps) == 1 else "no"
        self._recount()
        self._end.set()
        result.alerts = sorted(self._alerts - before)
        rig.readers.stop()
        result.away_by_reader = rig.readers.seconds_without_answers(self._began)
        result.away_s = max(result.away_by_reader.values())
        result.wrong = list(dict.fromkeys(rig.readers.wrong))[:5]

    # -- until the data are right -------------------------------------------------------------------

    def _until_right(self) -> float | None:
        quiet_since = time.monotonic()  # the disaster is complete
        end = quiet_since + self._incident.deadline_s * self._patience
        row = self._rig.generator.last
        while time.monotonic() < end:
            moment = time.monotonic()
            if self._rig.readers.answered_since(quiet_since) > row:
                return moment
            patience = SETTLE_S if self._followed else self._incident.patience_s
            ended = not self._rig.driver.runs()
            if ended and self._may_end:
                self._may_end = False
                self._rig.restart()  # as its supervisor does: it ended by what the last step mended
                continue
            wait_s = 2.0 if ended else patience * self._patience
            due = moment - quiet_since > wait_s and len(self._followed) < STEPS
            if due and self._step():
                quiet_since, row = time.monotonic(), self._rig.generator.last
            time.sleep(1.0 if due else 0.1)
        return None

    def _watch_alerts(self) -> None:
        while not self._end.wait(0.3):
            self._alerts |= self._rig.prometheus.firing()

    def _step(self) -> bool:
        """Carry out the next advice: that of the first message that has one and was not followed yet."""
        for message in self._messages():
            for name, action in self._advice(message.text):
                if name not in self._followed and not re.search(
                    f"tidegate drop|{self._incident.not_here}", name
                ):
                    self._followed.append(name)
                    if is_a_step(self._incident, name):
                        self._result.steps.append(name)
                        self._result.first_message = (
                            self._result.first_message or f"{message.source}: {message.text}"[:2000]
                        )
                    self._report(f"{self._incident.name}: {message.source} advises: {name}")
                    action()
                    self._may_end = self._rig.driver.runs()
                    if name.startswith("tidegate"):
                        self._report(f"    {self._rig.messages[-1].text[:1500]}")
                    if not self._rig.driver.runs() and not name.startswith("query: "):
                        self._rig.restart()  # as its supervisor does
                    return True
        return False

    def _messages(self) -> list[Message]:
        """The messages in an operator's order: of a command, the query, readers, alerts, doctor."""
        rig = self._rig
        seen = rig.observed_since(self._began)
        by_source = {
            kind: [message for message in seen if message.source.startswith(kind)]
            for kind in ("tidegate", "query", "log", "long-lived", "fresh")
        }
        readers = sorted((*by_source["long-lived"], *by_source["fresh"]), key=lambda m: m.moment)
        ordered = [*by_source["tidegate"][::-1], *by_source["query"], *by_source["log"], *readers]
        if not any(self._advice(message.text) for message in ordered):
            proposed = rig.prometheus.proposed().items()
            ordered += [Message(time.monotonic(), alert, action) for alert, action in proposed]
        if not any(self._advice(message.text) for message in ordered):
            text = next((each.text for each in ordered if not each.source.startswith("tidegate")), "")
            words = ("explain", text) if text else ("doctor",)
            if words not in self._asked:
                self._asked.append(words)
                rig.tidegate(*words)
                ordered.append(rig.messages[-1])
        return ordered

    def _advice(self, text: str) -> list[tuple[str, Callable[[], Any]]]:
        """The proposed commands and actions of a message, in its order."""
        advice: list[tuple[int, str, Callable[[], Any]]] = []
        for proposed in re.finditer(COMMAND, text):
            if any(re.search(pattern, proposed[0]) for pattern in self._rig.actions):
                continue  # the incident has its own way to do that
            words = shlex.split(proposed[1])
            advice.append(
                (proposed.start(), f"tidegate {proposed[1]}", lambda words=words: self._rig.tidegate(*words))
            )
        for pattern, action in self._rig.actions.items():
            phrase = re.search(pattern, text)
            if phrase:
                advice.append(
                    (phrase.start(), f"query: {phrase[0]}" if "start" in pattern else phrase[0], action)
                )
        return [(name, action) for _, name, action in sorted(advice, key=lambda each: each[0])]

    # -- the judgement --------------------------------------------------------------------------------

    def _recount(self) -> None:
        """Stop the input, let the query read it to its end, and compare the store with the input's files."""
        rig, result = self._rig, self._result
        rig.generator.stop()
        if result.right_s is None:
            result.recount = "not reached"
            return
        if self._incident.right is not None:
            result.recount = self._incident.right(rig) or "equal"
            return
        try:
            wait_until(
                lambda: rig.readers.answered_since(self._began) >= rig.generator.last,
                "the end",
                RECOUNT_S * self._patience,
            )
            files, stored = rig.recounted()
            result.recount = (
                "equal"
                if files == stored
                else f"differs: {files.totals} in files, {stored and stored.totals}"
            )
        except Exception as error:  # noqa: BLE001 - it is the row's finding
            result.recount = f"failed: {error}"
