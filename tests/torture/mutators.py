"""One way for each rule in which a right history is made a wrong one.

Each takes a ``Made`` and returns the rules of which one at least must be found; None when the history has
no place for it.
"""

import copy

from generate_histories import NAMESPACE, fill, fold
from tidegate.torture.history import events

MUTATORS = {}


def mutator(function):
    MUTATORS[function.__name__] = function
    return function


def pick(made, candidates):
    candidates = list(candidates)
    return made.random.choice(candidates) if candidates else None


def in_snapshots(made):
    """Look-ups in snapshots."""
    return [read for read in made.answered if read.event.snapshot and isinstance(read.event, events.Read)]


def asked_once(made, read, key):
    """Nothing else in its snapshot speaks of this key."""
    return not any(
        other is not read
        and other.event.snapshot == read.event.snapshot
        and other.event.table == read.event.table
        and (isinstance(other.event, events.Scanned) or key in [*other.event.found, *other.event.absent])
        for other in made.answered
    )


def say(event, key, value):
    """Answer a key otherwise."""
    event.found.pop(key, None)
    event.absent = [name for name in event.absent if name != key]
    if value is None:
        event.absent.append(key)
    else:
        event.found[key] = value


def value_at(made, version, table, key):
    return made.states[version].get(table, {}).get(key)


def keys_of(event):
    return [*event.found, *event.absent]


def insert(made, after, file, event):
    """A line right behind another one, at the same time."""
    event.at = after[1].at
    made.lines.insert(made.lines.index(after) + 1, (file, event))


def fresh_client(made, after):
    """A reader that connects right behind a line; its file, and its number."""
    name = f"fresh-{made.number()}"
    started = events.Started(name=name, role="reader", pid=1, boot="b", wall_us=0)
    client = made.number()
    connected = events.Connected(client=client, namespace=NAMESPACE)
    insert(made, after, name, connected)
    insert(made, after, name, started)
    return name, client


def make_room(made, after):
    """All that follows a line happens three moments later."""
    for _, event in made.lines[made.lines.index(after) + 1 :]:
        event.at += 3
        if isinstance(event, REPLIES) and event.began > after[1].at:
            event.began += 3


def look_after(made, after, version):
    """A fresh reader begins to look after a line, and sees a version."""
    make_room(made, after)
    name, client = fresh_client(made, after)
    looked = events.Looked(client=client, version=version, began=after[1].at + 1)
    looked.at = after[1].at + 2
    made.lines.insert(made.lines.index(after) + 3, (name, looked))


REPLIES = (
    events.Read,
    events.Scanned,
    events.Looked,
    events.Listed,
    events.SnapshotOpened,
    events.Failed,
)


def lines_of(made, kind):
    return [line for line in made.lines if isinstance(line[1], kind)]


def offer_of(made, number):
    return next(event for _, event in lines_of(made, events.Offered) if event.call == number)


def returned(made):
    """Calls that returned: the line, what was offered."""
    return [(line, offer_of(made, line[1].call)) for line in lines_of(made, events.Returned)]


def answer_all(made, states):
    """All reads again, as if these had been the contents."""
    for read in made.answered:
        fill(read.event, states[read.version])


def contents(made, change_of):
    """The contents by version when each batch does what ``change_of`` says."""
    states = [{}]
    for version, offer in enumerate(made.decided, 1):
        states.append(fold(states[-1], change_of(version, offer)))
    return states


# -- contents -----------------------------------------------------------------------------------------


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


def known_zombies(made):
    """Offers of drivers behind whom another had opened, as the history shows; a recovery fences too."""
    epochs = {event.driver: (event.epoch, event.at) for _, event in lines_of(made, events.Opened)}
    return [
        offer
        for offer in made.zombie_offers
        if any(epoch > epochs[offer.driver][0] and at < offer.at for epoch, at in epochs.values())
    ]


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


# -- versions -----------------------------------------------------------------------------------------


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
