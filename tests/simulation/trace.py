"""A schedule's trace in words: a line per actor and turn, and one for each fault."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from simulation.plays.world import Fault

Traced = tuple[float, str, str, str]
"""Time, actor, call, outcome."""

CALLS = {
    "append_decision genesis": "appends Genesis",
    "append_decision open": "appends Open",
    "append_decision decided": "appends Decided",
    "append_decision summary": "appends a Summary",
    "append_decision": "appends",
    "decisions": "folds the log",
    "append_decision store_added": "appends StoreAdded",
    "log.create": "makes the log",
    "log.checks": "checks the log",
    "log.stage": "stages",
    "log.read": "reads from the log",
    "trim_decisions": "cuts the decision log",
    "trim_blobs": "drops blobs",
    "identity": "asks whose store it is",
    "store.create": "makes the store",
    "pointer": "reads the pointer",
    "claim": "claims",
    "heartbeat": "beats",
    "put_schemas": "puts schemas",
    "begin": "begins",
    "begun": "asks what was begun",
    "discard": "discards",
    "apply": "applies",
    "seal": "seals",
    "publish": "flips to",
    "catalog": "reads the catalog",
    "schemas": "reads schemas",
    "get_stored": "reads rows",
    "scan": "scans",
    "lease": "takes a lease",
    "release": "gives a lease back",
    "announce": "announces a horizon",
    "retire": "retires",
    "drop_expired": "drops what has expired",
    "begin_fill": "begins a fill at",
    "publish_filled": "ends the fill, flips to",
}
LONG_ID = re.compile(r"\b([0-9a-f]{4})[0-9a-f]{12}\b")
WENT_WRONG = {
    Fault.REFUSED: "and is refused: nothing is done",
    Fault.LOST: "it is done, the reply is lost",
    Fault.LATE: "the reply is lost, and it is still on its way",
    Fault.TWICE: "it is done, and once more later",
    Fault.CRASH_BEFORE: "and is killed before it is done",
    Fault.CRASH_AFTER: "it is done, and the process is killed",
    Fault.CRASH_LATE: "and is killed; it is still on its way",
}
OUTCOMES = {fault.value: told for fault, told in WENT_WRONG.items()} | {"arrives late": "arrives now"}


def in_words(trace: Iterable[Traced]) -> Iterator[str]:
    """Yield the lines."""
    who_before, said = "", list[str]()
    for _, who, what, outcome in trace:
        if said and (who != who_before or outcome):
            yield f"  {who_before}: {', '.join(counted(said))}"
            said = []
        who_before = who
        if outcome:
            yield f"! {who} {call_in_words(what)}: {OUTCOMES.get(outcome, outcome)}"
        else:
            said.append(call_in_words(what))
    if said:
        yield f"  {who_before}: {', '.join(counted(said))}"


def call_in_words(what: str) -> str:
    """Describe a call; ids are shortened."""
    what = LONG_ID.sub(r"\1", what)
    for start, words in sorted(CALLS.items(), key=lambda entry: -len(entry[0])):
        if what == start or what.startswith(f"{start} "):
            return f"{words}{what[len(start) :]}".strip()
    return what.strip()


def counted(said: Iterable[str]) -> Iterator[str]:
    """Yield the same texts, with repeated ones merged and counted."""
    before, times = "", 0
    for one in said:
        if one == before:
            times += 1
            continue
        if times:
            yield before if times == 1 else f"{before} {times} times"
        before, times = one, 1
    if times:
        yield before if times == 1 else f"{before} {times} times"
