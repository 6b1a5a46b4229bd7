"""The timeline of a namespace, from a first pass over the history: its offers and sights, without any row.

Rules about time are judged during the pass. Reads are noted by the version they are of, as places in the
files, so that the second pass can take the versions in order.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterator

import msgspec
import xxhash

from tidegate.base.failpoints import FailpointError
from tidegate.errors import BY_NAME, CorruptError
from tidegate.torture.history import events
from tidegate.torture.history.files import Line
from tidegate.torture.history.offers import Offer, Origin, Place
from tidegate.torture.history.watermark import Watermark
from tidegate.torture.judge.verdict import Verdict


@dataclasses.dataclass(frozen=True, slots=True)
class LooseRead:
    """A read at the version that was newest, of ``least`` or a later version."""

    least: int
    began: int
    at: int
    store: str
    place: Place


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """A look at the newest version: when it began, and the version that it saw."""

    began: int
    version: int
    line: str


class Places:
    """A compact list of places, in 24 bytes each."""

    def __init__(self, files: list[str]) -> None:
        self._files, self._numbers = files, array("Q")

    def add(self, file: int, line: Line) -> None:
        self._numbers.extend((file, line.number, line.offset))

    def __len__(self) -> int:
        return len(self._numbers) // 3

    def __iter__(self) -> Iterator[Place]:
        for index in range(0, len(self._numbers), 3):
            file, number, offset = self._numbers[index : index + 3]
            yield Place(self._files[file], number, offset)


class Looks:
    """A compact list of looks, in 32 bytes each."""

    def __init__(self, files: list[str]) -> None:
        self._files, self._numbers = files, array("Q")

    def add(self, began: int, version: int, file: int, line: Line) -> None:
        self._numbers.extend((began, version, file, line.number))

    def __iter__(self) -> Iterator[Look]:
        for index in range(0, len(self._numbers), 4):
            began, version, file, number = self._numbers[index : index + 4]
            yield Look(began, version, f"{self._files[file]}:{number}")


ALWAYS = 2**63
"""A time after all others."""


class Timeline:
    """The first pass's knowledge of one namespace."""

    def __init__(self, name: str, files: list[str], verdict: Verdict) -> None:
        self.name, self._files, self._verdict = name, files, verdict
        self.offers: dict[Origin, list[Offer]] = {}
        self.sights: dict[int, tuple[int, str]] = {}
        """Each version's first sight: time and line."""
        self.commits = Watermark()
        self.registers: dict[str, Watermark] = {}
        self.horizon = Watermark()
        self.reads: dict[int, Places] = {}
        self.loose: list[LooseRead] = []
        self.looks: dict[str, Looks] = {}
        self.forgot_at = -1
        """Until then the store may have lost what was seen in it; ``ALWAYS`` while a fault lasts."""
        self.destroyed: dict[int, set[int]] = {}
        """By version, the key groups whose rows of it faults have removed."""
        self._epochs: dict[str, int] = {}
        self._owners: list[tuple[int, int, str, str]] = [(-1, 0, "", "")]
        """Opens of the namespace, with rising epochs: time, epoch, driver, line."""
        self._fenced: dict[str, str] = {}
        self._recovered: tuple[int, str, int | None] | None = None
        self._last_write = -1

    def find(self, rule: str, what: str, expected: str, seen: str, *lines: str) -> None:
        self._verdict.find(rule, self.name, what, expected, seen, *lines)

    # -- writers -----------------------------------------------------------------------------------

    def opened(self, event: events.Opened, line: str) -> None:
        self._last_write = event.at
        self._epochs[event.driver] = event.epoch
        self._fenced.pop(event.driver, None)
        if event.epoch > self._owners[-1][1]:
            self._owners.append((event.at, event.epoch, event.driver, line))

    def offered(self, event: events.Offered, line: Line) -> Offer:
        self._last_write = event.at
        origin = Origin(event.lineage, event.batch, event.fingerprint, event.token)
        content = msgspec.json.encode([event.changes, event.recipe], order="deterministic")
        place = Place(line.file, line.number, line.offset)
        digest = xxhash.xxh3_128_digest(content)
        fenced = self._fenced.get(event.driver, "") or self._replaced(event.driver, event.at)
        offer = Offer(origin, place, event.at, event.driver, digest, fenced)
        self.offers.setdefault(origin, []).append(offer)
        return offer

    def _replaced(self, driver: str, at: int) -> str:
        """Return the line by which another driver had opened with a higher epoch before; '' when none had."""
        own = self._epochs.get(driver)
        last = next(owner for owner in reversed(self._owners) if owner[0] < at)
        _, epoch, owner, line = last
        return line if own is not None and epoch > own and owner != driver else ""

    def returned(self, offer: Offer, event: events.Returned, line: str) -> None:
        if event.version < 1:
            raise CorruptError(f"{line}: a commit cannot return version {event.version}")
        self._last_write = event.at
        offer.version, offer.own, offer.ended = event.version, event.own, line
        self.commits.add(event.at, event.version, line)
        self.note_visible(event.at, event.version, "", line)

    def raised(self, offer: Offer, event: events.Raised, line: str) -> None:
        self._last_write = event.at
        offer.error, offer.ended = event.error, line
        if event.error == "FencedError":
            self._fenced.setdefault(offer.driver, line)

    def done(self, call: Asked, event: events.Done, line: str) -> None:
        """End a command. A second recovery with no writer since the first must have had nothing to do."""
        if event.visible is not None:
            self.see(event.visible, call.at, event.at, "", line)
        if event.horizon is not None:
            self.horizon.add(event.at, event.horizon, line)
        if call.command != "recover":
            self._last_write = event.at
            return
        before, self._recovered = self._recovered, (event.at, line, event.visible)
        if before is None or self._last_write >= before[0] or call.at < before[0]:
            return
        if event.published or (None not in (before[2], event.visible) and before[2] != event.visible):
            self.find(
                "recover",
                "a recovery published versions, though another one had just finished and nobody wrote since",
                f"0 versions published, {before[2]} visible",
                f"{event.published} versions published, {event.visible} visible",
                before[1],
                line,
            )

    def mended(self, event: events.PutBack, line: str) -> None:
        """Judge a repair of a version that was visible, hence whole: a fault must have destroyed the rows.

        A version that was not visible yet may never have been applied.
        """
        self._last_write = event.at
        visible, seen = self.registers.setdefault("", self.watermark()).before(event.began)
        destroyed = len(self.destroyed.get(event.version, ()))
        if event.version > visible or self.forgot_at >= 0 or event.key_groups <= destroyed:
            return
        self.find(
            "mended",
            f"a repair put version {event.version} back, which was visible and which no fault had destroyed",
            f"version {event.version} put back in at most {destroyed} key groups",
            f"in {event.key_groups}",
            seen,
            line,
        )

    def wrote(self, at: int) -> None:
        """Note that a command other than a recovery, which may write, began or ended."""
        self._last_write = at

    # -- readers -----------------------------------------------------------------------------------

    def note_visible(self, at: int, version: int, store: str, line: str) -> None:
        """Note that this version, or a later one, was visible in a store at ``at``."""
        self.registers.setdefault(store, self.watermark()).add(at, version, line)
        self.sights.setdefault(version, (at, line))

    def see(self, version: int, began: int, at: int, store: str, line: str) -> None:
        """Note that a process saw this as the newest version, in a look between ``began`` and ``at``."""
        commit, commit_line = self.commits.before(began)
        newest, newest_line = self.registers.setdefault(store, self.watermark()).before(began)
        if not store and version < commit:
            self.find(
                "stale",
                f"version {version} was the newest in a look that began after a commit had returned",
                f"version {commit} or later",
                f"version {version}",
                commit_line,
                line,
            )
        elif version < newest:
            self.find(
                "regressed",
                "the visible version went back",
                f"version {newest} or later, as had been seen before this look began",
                f"version {version}",
                newest_line,
                line,
            )
        if version:
            self.note_visible(at, version, store, line)

    def looked(self, version: int, began: int, store: str, file: int, line: Line) -> None:
        """Note a client's look that began then and saw this as the newest version."""
        self.see(version, began, line.event.at, store, line.where)
        self.looks.setdefault(store, Looks(self._files)).add(began, version, file, line)

    def read(self, version: int, file: int, line: Line) -> None:
        """Note a read in a snapshot of this version."""
        self.reads.setdefault(version, Places(self._files)).add(file, line)

    def loose_read(self, event: events.Read | events.Scanned, store: str, line: Line) -> None:
        least, _ = self.registers.setdefault(store, self.watermark()).before(event.began)
        place = Place(line.file, line.number, line.offset)
        self.loose.append(LooseRead(least, event.began, event.at, store, place))

    def watermark(self) -> Watermark:
        """Return a new bound, which holds nothing that the store may have lost."""
        steps = Watermark()
        steps.forget(self.forgot_at)
        return steps

    def forget(self, at: int) -> None:
        """Drop the bounds up to ``at``: the store may have lost what was seen in it."""
        self.forgot_at = at
        for steps in (self.commits, self.horizon, *self.registers.values()):
            steps.forget(at)


@dataclasses.dataclass
class Asked:
    """A command that was begun."""

    timeline: Timeline
    command: str
    at: int


@dataclasses.dataclass
class Client:
    """A client, and the newest version it has seen."""

    timeline: Timeline
    store: str
    seen: Watermark


def check_error(verdict: Verdict, namespace: str, error: str, text: str, line: str) -> None:
    """Count an error; one that neither tidegate documents nor a failpoint raised is a finding."""
    verdict.error(error)
    if error not in BY_NAME and error != FailpointError.__name__:
        verdict.find("error", namespace, text or "an error", "an error of tidegate.errors", error, line)
