"""The candidate batches of each version, by what the calls returned and what stayed unknown."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Iterator

from tidegate.torture.history.offers import Offer, Origin
from tidegate.torture.judge.timeline import Timeline

NEVER = 1 << 63


@dataclasses.dataclass(frozen=True)
class Choice:
    """A candidate of a version: one batch, with the rows of one of its offers."""

    origin: Origin
    offer: Offer
    known: bool
    """A call returned that the version is of this batch."""


class Candidates:
    """The versions of one namespace, 1 to ``top``, and the candidates of each."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.known: dict[int, list[Origin]] = {}
        self.lines: dict[tuple[Origin, int], str] = {}
        """The line by which a call returned that this batch made this version."""
        self._returned()
        self.top = max(timeline.sights, default=0)
        self.latest = self._latest_first_sights()
        lineages = self._by_lineage()
        self._neighbours = {lineage: [v for v, _ in versions] for lineage, versions in lineages.items()}
        self._batches = {lineage: [b for _, b in versions] for lineage, versions in lineages.items()}
        self._free = self._unclaimed()
        self.choices = [[], *(self._choices(version) for version in range(1, self.top + 1))]
        self.possible_at = list(itertools.accumulate(self._earliest(), max))
        self._check_order(lineages)

    # -- what calls returned --------------------------------------------------------------------------

    def _returned(self) -> None:
        find = self._timeline.find
        by_batch: dict[tuple[str, int], tuple[Origin, str]] = {}
        for origin, offers in self._timeline.offers.items():
            versions = {offer.version: offer.ended for offer in reversed(offers) if offer.version}
            for version, line in sorted(versions.items()):
                self.known.setdefault(version, []).append(origin)
                self.lines[origin, version] = line
            if len(versions) > 1:
                text = ", ".join(str(version) for version in sorted(versions))
                find("doubled", f"{origin} made several versions", "one version", text, *versions.values())
            if versions and not origin.token:
                line = next(iter(versions.values()))
                other, other_line = by_batch.setdefault((origin.lineage, origin.batch), (origin, line))
                if other != origin:
                    find(
                        "replanned",
                        f"{origin} was committed from two sets of offsets; the second one's rows are lost",
                        f"LineageError for {origin.fingerprint!r} after {other.fingerprint!r}",
                        f"versions {', '.join(str(version) for version in versions)}",
                        other_line,
                        line,
                    )
        for version, origins in self.known.items():
            if len(origins) > 1:
                find(
                    "shared",
                    f"several commits returned version {version}: all their batches but one are lost",
                    "a version for each",
                    ", ".join(str(origin) for origin in origins),
                    *(self.lines[origin, version] for origin in origins),
                )

    def _latest_first_sights(self) -> list[int]:
        """Compute by version the time by which it existed, because it or a later one was seen."""
        sights = [self._timeline.sights.get(version, (NEVER, ""))[0] for version in range(self.top + 1)]
        return list(itertools.accumulate(reversed(sights), min))[::-1]

    def _by_lineage(self) -> dict[str, list[tuple[int, int]]]:
        """List each lineage's known versions, ascending, with their batches."""
        lineages: dict[str, list[tuple[int, int]]] = {}
        for version in sorted(self.known):
            for origin in self.known[version]:
                if not origin.token:
                    lineages.setdefault(origin.lineage, []).append((version, origin.batch))
        return lineages

    def _unclaimed(self) -> dict[str, list[tuple[int, Origin]]]:
        """List by lineage, loads apart, batches that no call returned as a version but that may be one."""
        claimed = {origin for origins in self.known.values() for origin in origins}
        free: dict[str, list[tuple[int, Origin]]] = {}
        for origin, offers in self._timeline.offers.items():
            if origin not in claimed and any(not offer.impossible() for offer in offers):
                free.setdefault("" if origin.token else "/" + origin.lineage, []).append(
                    (origin.batch, origin)
                )
        for batches in free.values():
            batches.sort(key=lambda entry: entry[0])
        return free

    # -- choices -----------------------------------------------------------------------------------

    def beyond(self, version: int) -> list[Choice]:
        """List the candidates of a version after ``top``, which only a read can have shown."""
        return self._among(Choice(origin, offer, known=False) for origin, offer in self._unknown(version))

    def _unknown(self, version: int) -> Iterator[tuple[Origin, Offer]]:
        for origin in self._candidates(version):
            yield from ((origin, offer) for offer in self._possible(origin, version))

    def _choices(self, version: int) -> list[Choice]:
        origins = self.known.get(version)
        if origins is None:
            possible = [Choice(origin, offer, known=False) for origin, offer in self._unknown(version)]
        else:
            pairs = ((origin, offer) for origin in origins for offer in self._possible(origin, version))
            possible = [Choice(origin, offer, known=True) for origin, offer in pairs]
        in_time = [choice for choice in possible if choice.offer.at <= self.latest[version]]
        # With none in time the version was seen too early, which is a finding elsewhere.
        return self._among(in_time or possible)

    @staticmethod
    def _among(choices: Iterable[Choice]) -> list[Choice]:
        """Keep the first of each batch and content."""
        by_content: dict[tuple[Origin, bytes], Choice] = {}
        for choice in choices:
            by_content.setdefault((choice.origin, choice.offer.content), choice)
        return list(by_content.values())

    def _candidates(self, version: int) -> Iterator[Origin]:
        """Yield unclaimed batches that fit between the known ones of their lineage."""
        for lineage, batches in self._free.items():
            low, high = 0, len(batches)
            if lineage and (versions := self._neighbours.get(lineage[1:])):
                known, index = self._batches[lineage[1:]], bisect.bisect(versions, version)
                if index > 0:
                    low = bisect.bisect(batches, known[index - 1], key=lambda entry: entry[0])
                if index < len(known):
                    high = bisect.bisect_left(batches, known[index], key=lambda entry: entry[0])
            yield from (origin for _, origin in batches[low:high])

    def _possible(self, origin: Origin, version: int) -> list[Offer]:
        """List the batch's offers that can be the decided one."""
        offers = [offer for offer in self._timeline.offers[origin] if not offer.impossible()]
        return [offer for offer in offers if offer.own and offer.version == version] or offers

    def _earliest(self) -> Iterator[int]:
        """Yield by version the time of the first offer of any choice."""
        for choices in self.choices:
            yield min((choice.offer.at for choice in choices), default=0)

    # -- order --------------------------------------------------------------------------------------

    def _check_order(self, lineages: dict[str, list[tuple[int, int]]]) -> None:
        find = self._timeline.find
        for versions in lineages.values():
            for (version, batch), (later, other) in itertools.pairwise(versions):
                if other < batch and later != version:
                    lines = [self._line(version), self._line(later)]
                    find(
                        "order",
                        f"batch {other} is version {later}, after batch {batch} of the same lineage",
                        f"a version before {version}",
                        f"version {later}",
                        *lines,
                    )
        for version, origins in self.known.items():
            for origin in origins:
                first = self._timeline.offers[origin][0]
                before, line = self._timeline.commits.before(first.at)
                if before >= version:
                    find(
                        "order",
                        f"{origin} was first offered after version {before} had been returned",
                        f"a version after {before}",
                        f"version {version}",
                        line,
                        str(first.place),
                        self.lines[origin, version],
                    )

    def _line(self, version: int) -> str:
        return self.lines[self.known[version][0], version]

    def check_made(self) -> None:
        """Check that every version up to the newest is of a batch that can be decided.

        The batch must have been offered before the version was seen.
        """
        for version, choices in enumerate(self.choices):
            if version and not choices:
                self._unmade(version)
            elif version and min(choice.offer.at for choice in choices) > self.latest[version]:
                self._timeline.find(
                    "early",
                    f"version {version} was seen before any batch was offered that it can be of",
                    f"nothing after version {version - 1} before that",
                    f"version {self._seen_at(version)}",
                    self._sight(version),
                    str(choices[0].offer.place),
                )

    def _seen_at(self, version: int) -> int:
        """Return the version whose first sight proves that this one existed by then."""
        sights = self._timeline.sights
        return min((w for w in range(version, self.top + 1) if w in sights), key=lambda w: sights[w][0])

    def _sight(self, version: int) -> str:
        return self._timeline.sights[self._seen_at(version)][1]

    def _unmade(self, version: int) -> None:
        """Report a version that no batch can be."""
        origins = self.known.get(version, [])
        if not origins:
            self._timeline.find(
                "hole",
                f"no batch can be version {version}: each is of another version, or was refused",
                "a batch with an outcome that allows it",
                f"version {self._seen_at(version)}",
                self._sight(version),
            )
            return
        offers = [offer for origin in origins for offer in self._timeline.offers[origin]]
        rule = "zombie" if any(offer.fenced for offer in offers) else "ghost"
        self._timeline.find(
            rule,
            f"version {version} is of {origins[0]}, which can have no version",
            "no version: " + "; ".join(sorted({offer.impossible() for offer in offers})),
            f"version {version} returned",
            *(str(offer.place) for offer in offers[:4]),
            self._line(version),
        )
