"""Mutators of contents: torn, lost, doubled, undecided and unrepeatable reads."""

import copy

from generate_histories import fill
from mutators.registry import (
    answer_all,
    asked_once,
    contents,
    in_snapshots,
    insert,
    keys_of,
    known_zombies,
    lines_of,
    mutator,
    pick,
    say,
    value_at,
)
from tidegate.torture.history import events


@mutator
def torn_towards_later(made):
    """One key of a snapshot is already as a later version has it."""
    read, key, value = pick(
        made,
        (
            (read, key, value)
            for read in in_snapshots(made)
            for key in keys_of(read.event)
            for later in range(read.version + 1, len(made.states))
            if (value := value_at(made, later, read.event.table, key)) is not None
            and value != value_at(made, read.version, read.event.table, key)
            and read.event.table == "rows"
            and asked_once(made, read, key)
        ),
    ) or (None, None, None)
    if read is None:
        return None
    say(read.event, key, copy.deepcopy(value))
    return {"atomic", "retired"}


@mutator
def torn_towards_earlier(made):
    """One key of a snapshot is still as an earlier version had it."""
    read, key, value = pick(
        made,
        (
            (read, key, value)
            for read in in_snapshots(made)
            for key in keys_of(read.event)
            for earlier in range(read.version)
            if (value := value_at(made, earlier, read.event.table, key))
            != value_at(made, read.version, read.event.table, key)
            and value_at(made, read.version, read.event.table, key) is not None
            and asked_once(made, read, key)
        ),
    ) or (None, None, None)
    if read is None:
        return None
    say(read.event, key, copy.deepcopy(value))
    return {"atomic", "lost", "retired"}


@mutator
def scan_with_a_row_too_few(made):
    read = pick(
        made,
        (
            read
            for read in made.answered
            if isinstance(read.event, events.Scanned) and read.event.rows and read.event.snapshot
        ),
    )
    if read is None:
        return None
    table = dict(made.states[read.version][read.event.table])
    table.pop(made.random.choice(sorted(table)))
    before = copy.deepcopy(read.event)
    fill(read.event, {read.event.table: table})
    assert before != read.event
    return {"atomic", "lost", "retired", "repeatable", "resurrected"}


@mutator
def lost_batch(made):
    """One version's changes are nowhere."""
    version = pick(made, range(1, len(made.decided) + 1))
    if version is None:
        return None
    states = contents(made, lambda at, offer: [] if at == version else offer.changes)
    before = [copy.deepcopy(read.event) for read in made.answered]
    answer_all(made, states)
    changed = [read for read, old in zip(made.answered, before, strict=True) if read.event != old]
    if not changed or not any(isinstance(read.event, events.Read) for read in changed):
        return None
    return {"lost", "retired", "resurrected", "atomic"}


@mutator
def doubled_changes(made):
    """One version's appends and sums count twice."""
    version = pick(made, range(1, len(made.decided) + 1))
    if version is None:
        return None

    def twice(at, offer):
        again = [
            events.Change(table=change.table, append=change.append, reduce=change.reduce)
            for change in offer.changes
        ]
        return [*offer.changes, *again] if at == version else offer.changes

    before = [copy.deepcopy(read.event) for read in made.answered]
    answer_all(made, contents(made, twice))
    changed = [read for read, old in zip(made.answered, before, strict=True) if read.event != old]
    if not any(isinstance(read.event, events.Read) and read.event.snapshot for read in changed):
        return None
    return {"doubled", "retired"}


@mutator
def resurrected_delete(made):
    """A key that was deleted is as it was before."""
    read, key, value = pick(
        made,
        (
            (read, key, value)
            for read in in_snapshots(made)
            for key in read.event.absent
            for earlier in range(read.version)
            if (value := value_at(made, earlier, read.event.table, key)) is not None
            and read.event.table == "rows"
            and asked_once(made, read, key)
        ),
    ) or (None, None, None)
    if read is None:
        return None
    say(read.event, key, copy.deepcopy(value))
    return {"resurrected", "retired"}


@mutator
def ghost_value(made):
    """A value that nobody offered."""
    read = pick(made, in_snapshots(made))
    if read is None:
        return None
    key = made.random.choice(keys_of(read.event))
    if not asked_once(made, read, key):
        return None
    say(read.event, key, "never offered")
    return {"ghost", "retired"}


def undecided_value(made, offers):
    """A value of a batch that was not decided; of several answers one that can show it."""
    found = pick(
        made,
        (
            (read, key, value)
            for offer in offers
            for change in offer.changes
            for key, value in change.rows.items()
            if value is not None
            and not any(value == other.rows.get(key) for done in made.decided for other in done.changes)
            for read in in_snapshots(made)
            if read.event.table == change.table and key in keys_of(read.event) and asked_once(made, read, key)
        ),
    )
    if found is None:
        return False
    read, key, value = found
    say(read.event, key, copy.deepcopy(value))
    return True


@mutator
def undecided_batch_is_seen(made):
    return {"ghost", "zombie", "retired"} if undecided_value(made, made.lost_offers) else None


@mutator
def zombie_s_batch_is_seen(made):
    return {"zombie", "retired"} if undecided_value(made, known_zombies(made)) else None


@mutator
def items_in_another_order(made):
    read, key = pick(
        made,
        (
            (read, key)
            for read in in_snapshots(made)
            for key, items in read.event.found.items()
            if read.event.table == "lists" and len(items) > 1 and asked_once(made, read, key)
        ),
    ) or (None, None)
    if read is None:
        return None
    read.event.found[key].reverse()
    return {"order", "retired"}


@mutator
def unrepeatable(made):
    """The same question in the same snapshot, answered otherwise."""
    read, key = pick(made, ((read, key) for read in in_snapshots(made) for key in read.event.found)) or (
        None,
        None,
    )
    if read is None:
        return None
    event = copy.deepcopy(read.event)
    say(event, key, None)
    insert(made, read.line, read.line[0], event)
    return {"repeatable"}


@mutator
def loose_read_of_mixed_versions(made):
    """A read at the newest version of which no version can be."""
    read = pick(
        made,
        (
            read
            for read in made.answered
            if not read.event.snapshot and isinstance(read.event, events.Read) and read.event.found
        ),
    )
    if read is None:
        return None
    key = made.random.choice(sorted(read.event.found))
    read.event.found[key] = "mixed"
    return {"ghost"}


@mutator
def absent_after_retirement(made):
    """A version below the horizon is read as if it had been empty."""
    retired, read, key = pick(
        made,
        (
            (line, read, key)
            for line in lines_of(made, events.Done)
            if line[1].horizon
            for read in in_snapshots(made)
            if read.version < line[1].horizon
            for key in read.event.found
            if asked_once(made, read, key)
        ),
    ) or (None, None, None)
    if retired is None:
        return None
    say(read.event, key, None)
    if read.event.began <= retired[1].at:
        read.event.began = retired[1].at + 1
        made.lines.remove(read.line)
        made.lines.append(read.line)
        read.event.at = made.now + 1
    return {"retired"}
