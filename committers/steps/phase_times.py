"""The phases of one commit: their times, their waits, and the alarm for one that is stuck."""

from __future__ import annotations

import datetime
import logging
import threading
import time
from collections.abc import Callable, Mapping

from tidegate.committers.states import State, Watch
from tidegate.committers.steps.answers import Answers
from tidegate.observe import events
from tidegate.observe.events import Commit, Count, Gauge, Labels, PhaseTime
from tidegate.wal.manifest import Manifest
from tidegate.wal.record import BatchOrigin, Origin

logger = logging.getLogger("tidegate")

PHASE_OF = {
    State.READY: "stage",
    State.STAGING: "stage",
    State.STAGED: "manifest",
    State.DECIDING: "decide",
    State.FOLDING: "decide",
    State.FENCING: "decide",
    State.DECIDED: "apply",
    State.SEALED: "publish",
    State.READING_BACK: "publish",
}
"""The phase of each state; final states have none. Sealing is the end of an apply."""

AGAIN = {(State.FOLDING, State.DECIDING), (State.READING_BACK, State.SEALED)}
"""Transitions back, in which the decision or the flip is sent again."""

WAITS_FOR = {
    "stage": "Spark, which runs the tasks that stage the batch into {log}",
    "manifest": "{log} to take the manifest",
    "decide": "{log} to take the decision",
    "apply": "{store} to take the version's rows",
    "publish": "{store} to make the version visible",
}

NEEDS = {
    "stage": ("log", "store"),
    "manifest": ("log",),
    "decide": ("log",),
    "apply": ("log", "store"),
    "publish": ("store",),
}
"""The parts that a phase sends requests to."""


class Phases(Watch):
    """A watch of one barrier's ``Machine``s: seconds per state, by the state's name, in order.

    A state's time is the time until it was left: ``decided`` is the time until every key group was sealed.
    ``names`` are the log's and the store's, for messages. ``requests`` are small reads of both: the alarm
    sends them to find the one that does not answer. Log records of the commit have its fields.
    """

    def __init__(
        self,
        at: Labels = Labels(""),  # noqa: B008 - it is frozen
        version: int | None = None,
        origin: Origin | None = None,
        names: Mapping[str, str] | None = None,
        stuck_after_s: float | None = None,
        requests: Mapping[str, Callable[[], object]] | None = None,
    ) -> None:
        self.at, self.version, self.stuck_after_s = at, version, stuck_after_s
        self.batch = origin.batch_id if isinstance(origin, BatchOrigin) else None
        self.seconds: dict[str, float] = {}
        self.retries = 0
        self.alarmed_at_s = 0.0
        self._names = {"log": "the log", "store": "the store", **(names or {})}
        self._requests = requests or {}
        self._answers: Answers | None = None
        self._trace: list[PhaseTime] = []
        self._state: State | None = None
        self._began_ns = self._since_ns = time.time_ns()
        self._since = self._phase_since = time.perf_counter()
        self._reason = self._applied_by = ""

    @property
    def namespace(self) -> str:
        """The namespace's name."""
        return self.at.namespace

    @property
    def phase(self) -> str | None:
        """The current phase; None: the commit has ended."""
        return None if self._state is None else PHASE_OF.get(self._state)

    def entered(self, state: State) -> None:
        """Observe a state: entered by a commit's machine, or by one that resumes a decided version."""
        now, before, phase = time.perf_counter(), self._state, self.phase
        if before is not None and before is not State.READY:
            self.seconds[before.value] = self.seconds.get(before.value, 0.0) + now - self._since
        if (before, state) in AGAIN:
            self._again(PHASE_OF[state])
        self._state, self._since = state, now
        if self.phase != phase:
            self._end_phase(phase, now)

    def _end_phase(self, phase: str | None, now: float) -> None:
        took = now - self._phase_since
        if phase is not None:
            self._trace.append(PhaseTime(phase, self._since_ns, took))
            events.tell(lambda observer: observer.phase(self.at, phase, took))
        if self.alarmed_at_s:
            logger.warning("version %s continues: %s took %.0f s", self.version, phase, took)
            events.level(Gauge.STUCK_S, Labels(self.at.namespace), 0)
        self.alarmed_at_s = 0.0
        self._phase_since, self._since_ns, self._reason = now, time.time_ns(), ""
        self._answers = None

    def of_version(self, version: int) -> None:
        """Observe the version, which is known once it is decided."""
        self.version = version

    def applied_by(self, who: str) -> None:
        """Observe who applies the version: "driver", or "tasks"."""
        self._applied_by = who

    def waiting_for(self, reason: str) -> None:
        """Observe that the phase waits for something else than usual; '': for the usual again."""
        self._reason = reason

    def retried(self, error: BaseException) -> None:
        """Observe that a try failed and is made again."""
        self._reason = f"{type(error).__name__}: {error}".replace("\n", " ")
        self._again(self.phase or "")

    def _again(self, phase: str) -> None:
        self.retries += 1
        events.count(Count.RETRIES, self.at, kind=phase)

    # -- the end ------------------------------------------------------------------------------------

    def commit(self, manifest: Manifest | None = None) -> Commit:
        """Return the commit's times and changes, for its observers."""
        phases: dict[str, float] = {}
        steps = () if manifest is None else manifest.steps or ()
        for part in self._trace:
            phases[part.phase] = phases.get(part.phase, 0.0) + part.seconds
        return Commit(
            self.at.namespace,
            self.version or 0,
            self.batch,
            self.at.store,
            datetime.datetime.fromtimestamp(self._began_ns / 1e9, datetime.timezone.utc),
            sum(phases.values()),
            phases,
            {} if manifest is None else manifest.changes(),
            0 if manifest is None else sum(frame.bytes for frame in manifest.frames()),
            self.retries,
            tuple(self._trace),
            {one.name: (one.rows, one.seconds) for one in steps},
            {one.name: one.ties for one in steps if one.ties},
            "" if not steps else "driver" if any(each.parallelism == 0 for each in steps) else "tasks",
            self._applied_by,
        )

    def end(self) -> None:
        """End the last phase: the barrier is no longer in flight, for any reason. Repeatable."""
        if self.phase is not None:
            phase, self._state = self.phase, None
            self._end_phase(phase, time.perf_counter())
        _alarm.forget(self)

    # -- the alarm ----------------------------------------------------------------------------------

    def begin(self, state: State | None = State.READY) -> None:
        """Begin the first phase; until ``end`` the alarm watches the commit. None: no phase has begun."""
        self._state = state
        self._since = self._phase_since = time.perf_counter()
        self._began_ns = self._since_ns = time.time_ns()
        if self.stuck_after_s is not None:
            _alarm.watch(self)

    def look(self) -> None:
        """Alarm when the phase has taken longer than ``stuck_after_s``; repeat at each doubling."""
        since, phase = self._phase_since, self.phase
        took = time.perf_counter() - since
        if phase is None or self.stuck_after_s is None or took < self.stuck_after_s:
            return
        labels = Labels(self.at.namespace)
        events.level(Gauge.STUCK_S, labels, took)
        if took < 2 * self.alarmed_at_s:
            return
        if not self._reason and not self._asked(phase).known:
            return  # looked at again EVERY_S later
        self.alarmed_at_s = took
        if self._phase_since != since:
            events.level(Gauge.STUCK_S, labels, 0)  # the phase ended at this moment
            return
        events.count(Count.ALARMS, self.at, kind="stuck")
        usual = WAITS_FOR[phase].format(**self._names)
        reason = self._reason or self._asked(phase).missing or usual
        self._answers = None
        fields = {name: getattr(self, name) for name in events.FIELDS}
        logger.warning(
            "ALARM: version %s of %s is stuck: %s has taken %.0f s (alarm_s is %g); it waits for %s",
            self.version,
            self.at.namespace,
            phase,
            took,
            self.stuck_after_s,
            reason,
            extra=fields,
        )

    def _asked(self, phase: str) -> Answers:
        """Return the answers of the parts that the phase needs, asked once for an alarm."""
        if self._answers is None:
            needed = [part for part in NEEDS[phase] if part in self._requests]
            self._answers = Answers([(self._names[part], self._requests[part]) for part in needed])
        return self._answers


class _Alarm:
    """A daemon thread that checks all running commits; it ends after ``IDLE_S`` without any."""

    EVERY_S, IDLE_S = 0.5, 10.0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: set[Phases] = set()
        self._thread: threading.Thread | None = None

    def watch(self, phases: Phases) -> None:
        with self._lock:
            self._watched.add(phases)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="tidegate-alarm", daemon=True)
                self._thread.start()

    def forget(self, phases: Phases) -> None:
        with self._lock:
            self._watched.discard(phases)

    def _run(self) -> None:
        idle_s = 0.0
        while True:
            time.sleep(self.EVERY_S)
            with self._lock:
                watched = list(self._watched)
                idle_s = 0.0 if watched else idle_s + self.EVERY_S
                if idle_s >= self.IDLE_S:
                    self._thread = None
                    return
            for phases in watched:
                phases.look()


_alarm = _Alarm()
