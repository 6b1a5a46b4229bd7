"""The mutators by name, and the steps that they share."""

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


def known_zombies(made):
    """Offers of drivers behind whom another had opened, as the history shows; a recovery fences too."""
    epochs = {event.driver: (event.epoch, event.at) for _, event in lines_of(made, events.Opened)}
    return [
        offer
        for offer in made.zombie_offers
        if any(epoch > epochs[offer.driver][0] and at < offer.at for epoch, at in epochs.values())
    ]
