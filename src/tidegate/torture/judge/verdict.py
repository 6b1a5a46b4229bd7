"""The verdict of a checker: the broken rules, the lines of the history that show it, and what was counted."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

RULES: dict[str, tuple[str, str]] = {
    "atomic": ("I1", "a snapshot holds exactly the changes of the versions up to its own"),
    "lost": ("I1", "every change of a decided version is present"),
    "resurrected": ("I1", "a deleted row stays deleted"),
    "doubled": ("I2", "a batch makes one version, and its changes count once"),
    "shared": ("I2", "a version is of one batch"),
    "replanned": ("I2", "one batch is not committed from two sets of offsets"),
    "stale": ("I3", "a look that begins after a commit returned sees its version, or a later one"),
    "mended": ("I3", "a repair puts back only those rows of a visible version that a fault had destroyed"),
    "recover": ("I4", "a second recovery has nothing to do"),
    "ghost": ("I5", "nobody sees a batch that was not offered, or was refused"),
    "early": ("I5", "no version is seen before its batch was offered"),
    "zombie": ("I6", "a fenced driver has no effect"),
    "hole": ("I7", "every version up to the newest is of a batch"),
    "order": ("I7", "versions are in the order of their batches"),
    "repeatable": ("I8", "a snapshot gives the same answer each time"),
    "retired": ("I8", "below the horizon a read is right, or raises SnapshotExpiredError"),
    "other-version": ("I8", "a snapshot is of the requested version"),
    "monotonic": ("I9", "a client never sees the visible version go back"),
    "regressed": ("I9", "the visible version never goes back, for any reader"),
    "error": ("I10", "every error that a reader or writer gets is documented"),
}
"""By rule: the promise of docs/protocol.md that it belongs to, and what must hold."""

MOST_LISTED = 20
"""The number of findings of one rule that are listed; further ones are counted."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One broken rule. ``events`` are lines of the history, as file:line."""

    rule: str
    invariant: str
    namespace: str
    what: str
    expected: str
    seen: str
    events: tuple[str, ...]

    def __str__(self) -> str:
        lines = ", ".join(self.events)
        text = f"{self.invariant} {self.rule}, namespace {self.namespace}: {self.what}"
        return f"{text}\n  expected: {self.expected}\n  seen:     {self.seen}\n  lines:    {lines}"


class Verdict(msgspec.Struct, kw_only=True):
    """The findings of a check, its counts, and the questions that it could not judge."""

    findings: list[Finding] = []
    counts: dict[str, int] = {}
    broken: dict[str, int] = {}
    """The number of times each rule was broken; at most MOST_LISTED of each are in ``findings``."""
    errors: dict[str, int] = {}
    """Errors of writers and readers, by class."""
    unjudged: list[str] = []
    """Questions that the history leaves open: neither proven nor refuted."""

    @property
    def ok(self) -> bool:
        """Whether nothing is broken, and nothing was left unjudged."""
        return not self.broken and not self.unjudged

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def error(self, name: str) -> None:
        self.errors[name] = self.errors.get(name, 0) + 1

    def find(self, rule: str, namespace: str, what: str, expected: str, seen: str, *events: str) -> None:
        """Add one finding."""
        self.broken[rule] = self.broken.get(rule, 0) + 1
        # Not by ``broken``: it may count wrong answers that nobody traces before the first one that is.
        if sum(each.rule == rule for each in self.findings) < MOST_LISTED:
            finding = Finding(
                rule=rule,
                invariant=RULES[rule][0],
                namespace=namespace,
                what=what,
                expected=expected,
                seen=seen,
                events=events,
            )
            self.findings.append(finding)

    def lines(self) -> Iterator[str]:
        """Yield lines for people: the counts, then each finding."""
        yield "checked: " + ", ".join(f"{number:,} {what}" for what, number in sorted(self.counts.items()))
        if self.errors:
            yield "errors raised: " + ", ".join(f"{name} {n:,}" for name, n in sorted(self.errors.items()))
        yield from (f"not judged: {text}" for text in self.unjudged)
        yield from (str(finding) for finding in self.findings)
        for rule, number in self.broken.items():
            if number > MOST_LISTED:
                yield f"{rule}: {number - MOST_LISTED:,} more"
        yield "nothing is broken" if not self.broken else f"broken: {', '.join(sorted(self.broken))}"
