"""Mutators of versions: their order, who sees them when, zombies, recoveries and errors."""

import copy

from generate_histories import NAMESPACE
from mutators.registry import (
    fresh_client,
    insert,
    known_zombies,
    lines_of,
    look_after,
    make_room,
    mutator,
    offer_of,
    pick,
    returned,
    value_at,
)
from tidegate.torture.history import events


@mutator
def batch_in_two_versions(made):
    line, offer = pick(made, returned(made)) or (None, None)
    if line is None:
        return None
    call = made.number()
    again = copy.deepcopy(offer)
    again.call = call
    other = events.Returned(call=call, version=line[1].version + 1)
    insert(made, line, line[0], other)
    insert(made, line, line[0], again)
    return {"doubled"}


@mutator
def two_batches_in_one_version(made):
    pairs = returned(made)
    found = pick(
        made,
        ((one, other) for one, offer in pairs for other, late in pairs if one[1].version < other[1].version),
    )
    if found is None:
        return None
    one, other = found
    offer = offer_of(made, one[1].call)
    late = offer_of(made, other[1].call)
    if (offer.lineage, offer.batch, offer.token) == (late.lineage, late.batch, late.token):
        return None
    one[1].version = other[1].version
    return {"shared"}


@mutator
def replanned_batch_is_committed(made):
    found = pick(made, ((line, offer) for line, offer in returned(made) if not offer.token))
    if found is None:
        return None
    line, offer = found
    call = made.number()
    again = copy.deepcopy(offer)
    again.call, again.fingerprint = call, "other offsets"
    insert(made, line, line[0], events.Returned(call=call, version=line[1].version))
    insert(made, line, line[0], again)
    return {"replanned"}


@mutator
def hole_in_versions(made):
    """All versions from one on have a number too high."""
    offers = {id(offer) for offer in made.decided}
    if not made.visible or any(id(event) not in offers for _, event in lines_of(made, events.Offered)):
        return None  # a batch that came to nothing could be the version that is not there
    first = made.random.randint(1, made.visible)
    for _, event in made.lines:
        for name in ("version", "visible", "asked", "horizon"):
            if (getattr(event, name, 0) or 0) >= first:
                setattr(event, name, getattr(event, name) + 1)
        if isinstance(event, events.Listed):
            event.versions = [version + (version >= first) for version in event.versions]
    return {"hole", "early"}


@mutator
def batches_out_of_order(made):
    """Two batches of a lineage have each other's versions."""
    pairs = [
        (one, other)
        for one, offer in returned(made)
        for other, late in returned(made)
        if one[1].version < other[1].version and offer.lineage == late.lineage and not offer.token
    ]
    found = pick(made, pairs)
    if found is None:
        return None
    one, other = (line[1].version for line in found)
    for _, event in made.lines:
        if isinstance(event, events.Returned) and event.version in (one, other):
            event.version = one + other - event.version
    return {"order"}


@mutator
def stale_after_commit(made):
    line = pick(made, (line for line, _ in returned(made)))
    if line is None:
        return None
    look_after(made, line, made.random.randrange(line[1].version))
    return {"stale"}


@mutator
def another_client_sees_less(made):
    """What one saw, another who looks later does not."""
    seen = [line for line in lines_of(made, events.Looked) if line[1].version]
    primary = {client.number for client in made.clients if not client.store}
    line = pick(made, (line for line in seen if line[1].client in primary))
    if line is None:
        return None
    look_after(made, line, line[1].version - 1)
    return {"regressed", "stale"}


def shown_by_a_newest_read(made):
    """Look-ups at the newest version that show a key as their version first made it; and that key."""
    for read in made.answered:
        if read.event.snapshot or read.store or not isinstance(read.event, events.Read):
            continue
        for key, value in read.event.found.items():
            if all(
                value_at(made, earlier, read.event.table, key) != value for earlier in range(read.version)
            ):
                yield read, key


@mutator
def look_behind_what_a_newest_read_showed(made):
    """Nobody else had seen that version, maybe."""
    read, _ = pick(made, shown_by_a_newest_read(made)) or (None, None)
    if read is None:
        return None
    look_after(made, read.line, read.version - 1)
    return {"regressed", "stale"}


@mutator
def newest_read_behind_another_one(made):
    """A reader at the newest version goes back; what it sees is gone for good by then."""
    if made.kills:  # of a replay with other rows either content may be the one that was decided
        return None
    read, key = pick(
        made,
        (
            (read, key)
            for read, key in shown_by_a_newest_read(made)
            if read.event.table == "rows" and value_at(made, read.version - 1, "rows", key) is not None
        ),
    ) or (None, None)
    if read is None:
        return None
    make_room(made, read.line)
    value = value_at(made, read.version - 1, "rows", key)
    line = read.line
    event = events.Read(client=line[1].client, table="rows", began=line[1].at + 1, found={key: value})
    insert(made, line, line[0], event)
    event.at += 2
    return {"regressed", "lost", "atomic", "resurrected"}


@mutator
def list_without_the_newest(made):
    """Who lists the versions behind a commit does not find its version."""
    line = pick(made, (line for line, _ in returned(made) if line[1].version > 1))
    if line is None:
        return None
    make_room(made, line)
    name, client = fresh_client(made, line)
    versions = list(range(1, line[1].version))
    listed = events.Listed(client=client, versions=versions, began=line[1].at + 1)
    listed.at = line[1].at + 2
    made.lines.insert(made.lines.index(line) + 3, (name, listed))
    return {"stale"}


@mutator
def client_goes_back(made):
    line = pick(made, (line for line in lines_of(made, events.Looked) if line[1].version))
    if line is None:
        return None
    make_room(made, line)
    event = events.Looked(client=line[1].client, version=line[1].version - 1, began=line[1].at + 1)
    insert(made, line, line[0], event)
    event.at += 2
    return {"monotonic"}


@mutator
def seen_before_it_was_offered(made):
    """A look that is over before the batch of its version began."""
    if made.kills:
        return None
    found = pick(made, returned(made))
    if found is None:
        return None
    line, offer = found
    same = [
        event
        for _, event in made.lines
        if isinstance(event, events.Offered)
        and (event.lineage, event.batch, event.token) == (offer.lineage, offer.batch, offer.token)
    ]
    position = next(at for at, (_, event) in enumerate(made.lines) if event is same[0])
    before = made.lines[position - 1]
    if before[1].at >= same[0].at:
        return None
    name, client = fresh_client(made, before)
    looked = events.Looked(client=client, version=line[1].version, began=before[1].at)
    looked.at = before[1].at
    made.lines.insert(made.lines.index(before) + 3, (name, looked))
    return {"early", "zombie"}


@mutator
def list_with_a_hole(made):
    line = pick(made, (line for line in lines_of(made, events.Listed) if len(line[1].versions) > 2))
    if line is None:
        return None
    line[1].versions.pop(1)
    return {"hole"}


@mutator
def another_version_than_asked(made):
    line = pick(made, (line for line in lines_of(made, events.SnapshotOpened) if line[1].asked))
    if line is None:
        return None
    line[1].asked += 1
    return {"other-version"}


@mutator
def zombie_s_commit_returns(made):
    """A driver that was fenced is told that its batch is a version."""
    zombies = {offer.call: offer for offer in known_zombies(made)}
    raised = pick(made, (line for line in lines_of(made, events.Raised) if line[1].call in zombies))
    if raised is None:
        return None
    offer = zombies[raised[1].call]
    offer.fingerprint, offer.batch = "a batch of its own", 1_000
    version = made.visible + 1
    at = made.lines.index(raised)
    event = events.Returned(call=raised[1].call, version=version)
    event.at = raised[1].at
    made.lines[at] = (raised[0], event)
    return {"zombie"}


@mutator
def recovery_that_finds_something_again(made):
    recovers = [
        line
        for line in lines_of(made, events.Done)
        if offer_command(made, line[1].call) == "recover"
        and not any(event.at == line[1].at for _, event in made.lines if event is not line[1])
    ]
    line = pick(made, recovers)
    if line is None:
        return None
    make_room(made, line)
    call = made.number()
    done = events.Done(call=call, visible=line[1].visible, published=1)
    asked = events.Asked(call=call, namespace=NAMESPACE, command="recover")
    insert(made, line, line[0], done)
    insert(made, line, line[0], asked)
    asked.at, done.at = asked.at + 1, done.at + 2
    return {"recover"}


def offer_command(made, number):
    return next(event.command for _, event in lines_of(made, events.Asked) if event.call == number)


@mutator
def a_repair_of_what_no_fault_destroyed(made):
    line = pick(made, (line for line, _ in returned(made)))
    if line is None:
        return None
    make_room(made, line)
    version = made.random.randrange(line[1].version) + 1
    mended = events.PutBack(namespace=NAMESPACE, version=version, key_groups=1, began=line[1].at + 1)
    insert(made, line, line[0], mended)
    mended.at += 2
    return {"mended"}


@mutator
def an_error_that_is_not_documented(made):
    client = made.clients[0]
    event = events.Failed(client=client.number, what="get", error="TypeError", began=made.now)
    made.note(client.file, event)
    return {"error"}


@mutator
def store_that_forgot_without_a_fault(made):
    client = made.clients[0]
    event = events.Failed(client=client.number, what="version", error="VersionRegressedError", began=made.now)
    made.note(client.file, event)
    return {"regressed"}
