"""The checker of recorded histories, by every promise that is observable from outside.

It trusts nothing but the history: the offers, the answers of calls and reads, and their times. The expected
content of a version is computed from the offers alone. The rules are in ``verdict.RULES``; docs/histories.md
describes how each is judged. Time is linear in the history; memory holds the tables at one version, a few
bytes for each read and a few hundred for each offer.
"""

from __future__ import annotations

from pathlib import Path

from tidegate.torture.history.files import read_history
from tidegate.torture.history.source import Recompute, Source
from tidegate.torture.judge.candidates import Candidates
from tidegate.torture.judge.first_pass import Timelines
from tidegate.torture.judge.second_pass import Contents
from tidegate.torture.judge.verdict import Verdict


def check(folder: Path, recompute: Recompute | None = None) -> Verdict:
    """Judge the history in a folder; the same folder gives the same verdict.

    ``recompute`` gives the changes of batches that were offered by a recipe. ConfigError: there is no
    history, or a recipe and no ``recompute``. CorruptError: a file was damaged, or is no history.
    """
    verdict = Verdict()
    timelines = Timelines(verdict)
    timelines.take(read_history(folder))
    with Source(folder, recompute) as source:
        for timeline in timelines.by_name.values():
            candidates = Candidates(timeline)
            candidates.check_made()
            Contents(timeline, candidates, source, verdict).check()
    return verdict
