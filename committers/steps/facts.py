"""The facts of versions, including those that the fold no longer keeps."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.committers.decision_log import DecisionLog
from tidegate.errors import WalGapError
from tidegate.wal.fold import View, fact_of, fold_all
from tidegate.wal.log import Log
from tidegate.wal.record import Folded, VersionFact


def known_facts(log: Log, state: Folded, version: int) -> Iterator[VersionFact]:
    """Yield the facts of ``version`` and all later ones up to ``state``'s last, oldest first.

    Those that ``state`` no longer keeps are read from the decision log, in one pass. Versions whose
    decision was trimmed there are left out.
    """
    version, last = max(version, 1), state.last_version
    if fact_of(state, version) is None and version <= last:
        kept_from = state.recent[0].version if state.recent else last + 1
        view, expected = View(), version
        for entry in log.decisions():
            view = fold_all(view, [entry], log.where)
            for fact in _newer(view, expected):
                if fact.version >= kept_from:
                    break
                yield fact
                expected = fact.version + 1
            if view.state is not None and view.state.last_version + 1 >= kept_from:
                break
        version = kept_from
    yield from (fact for fact in state.recent if fact.version >= version)


def facts_from(decisions: DecisionLog, version: int, store: str) -> Iterator[VersionFact]:
    """Yield the facts of ``version`` and all later ones, oldest first.

    ``store`` is the location of the store that lacks them, for the message. Raises: WalGapError: the log no
    longer has them.
    """
    state, expected = decisions.folded, version
    for fact in known_facts(decisions.log, state, version):
        if fact.version != expected:
            break
        yield fact
        expected += 1
    if expected <= state.last_version:
        msg = (
            f"version {expected} is not whole in {store}, and {decisions.where} no"
            " longer holds its decision: it was trimmed, wal_retain_s says how far back the log reaches;"
            " restore the store from a newer copy, or use a new namespace"
        )
        raise WalGapError(msg)


def known_fact(decisions: DecisionLog, version: int) -> VersionFact | None:
    """Return the fact of one version; None: it is not decided, or the log no longer has its decision."""
    fact = next(known_facts(decisions.log, decisions.folded, version), None)
    return fact if fact is not None and fact.version == version else None


def _newer(view: View, version: int) -> list[VersionFact]:
    """List the facts that a view has from ``version`` on; after a Summary they are many."""
    recent = view.state.recent if view.state else ()
    if not recent or recent[-1].version < version:
        return []
    return list(recent[max(0, version - recent[0].version) :])
