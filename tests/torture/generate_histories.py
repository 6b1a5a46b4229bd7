"""Right histories, made by a small model of the system: one log, one pointer, drivers, readers, kills.

Everything happens at one moment of a virtual clock: a call is offered, decides, becomes visible and
returns in separate steps, and the steps of all actors are mixed. What the model keeps of the truth is
its own (``states``), so that the checker's fold is compared with another one.
"""

import copy
import dataclasses
import random

import msgspec

from tidegate.torture.history import events
from tidegate.torture.history.files import canonical, digest_of

NAMESPACE = "made"
KEYS = [f"k{at}" for at in range(6)]
LISTS = ["l0", "l1"]
SUMS = ["s0", "s1"]


@dataclasses.dataclass(eq=False)
class Call:
    """A commit that is under way."""

    offer: events.Offered
    driver: "Driver"
    version: int = 0
    own: bool = False


@dataclasses.dataclass(eq=False)
class Driver:
    name: str
    file: str
    epoch: int
    call: Call | None = None
    alive: bool = True


@dataclasses.dataclass(eq=False)
class Client:
    number: int
    file: str
    store: str


@dataclasses.dataclass(eq=False)
class Answered:
    """A read that was written: at which version it took place."""

    line: tuple[str, events.Event]
    version: int
    store: str

    @property
    def event(self):
        return self.line[1]


def fold(state, changes):
    """The next content; a model of its own, on plain dictionaries."""
    state = copy.deepcopy(state)
    for change in changes:
        table = state.setdefault(change.table, {})
        if change.replace:
            table.clear()
        for key, value in change.rows.items():
            if value is None:
                table.pop(key, None)
            else:
                table[key] = value
        for key, items in change.append.items():
            table[key] = [*table.get(key, []), *items]
        for key, numbers in change.reduce.items():
            row = dict(table.get(key, {}))
            for name, number in numbers.items():
                row[name] = row.get(name, 0) + number if name == "n" else max(row.get(name, number), number)
            table[key] = row
    for change in changes:
        if change.counts:
            values = [canonical(value).decode() for value in state.get(change.counts, {}).values()]
            state[change.table] = {value: {"n": values.count(value)} for value in values}
    return state


class Made:
    """One history. ``kills``: drivers die, and their batches come again with other rows. ``settles``: all is
    read once more in the end; else it breaks off.
    """

    def __init__(self, seed, steps=120, kills=True, drivers=2, readers=3, settles=True):
        self.random = random.Random(seed)
        self.kills = kills
        self.lines = []
        self.now = 100
        self.states = [{}]
        self.decided = []  # offers, by version - 1
        self.visible, self.horizon, self.epoch = 0, 0, 0
        self.copy_visible = 0
        self.answered = []
        self.zombie_offers, self.lost_offers = [], []
        self.numbers = 0
        self.lineage, self.next_batch, self.plans = "A", 0, {}
        self.max_drivers = drivers
        self.drivers, self.calls = [], []
        self.clients, self.snapshots = [], []
        self.files = {}
        self.file("runner", "runner")
        for _ in range(readers):
            self.connect()
        self.open_driver()
        for _ in range(steps):
            self.step()
        if settles:
            self.settle()

    # -- lines ------------------------------------------------------------------------------------

    def number(self):
        self.numbers += 1
        return self.numbers

    def file(self, name, role):
        self.files[name] = role
        started = events.Started(name=name, role=role, pid=1, boot="b", wall_us=0)
        return self.note(name, started)

    def note(self, file, event):
        self.now += self.random.randrange(3)
        event.at = self.now
        self.lines.append((file, event))
        return self.lines[-1]

    def began(self):
        self.now += self.random.randrange(3)
        return self.now

    # -- steps --------------------------------------------------------------------------------------

    def step(self):
        kinds = [self.offer, self.advance, self.advance, self.advance, self.read, self.read, self.read]
        kinds += [self.hold, self.hold, self.look, self.close, self.loose, self.listed]
        kinds += [self.follow, self.retire, self.recover]
        if self.kills:
            kinds += [self.kill, self.open_driver, self.zombie, self.refuse]
        if self.random.random() < 0.05:
            kinds = [self.connect, self.adopt, self.load]
        self.random.choice(kinds)()

    def owner(self):
        return next((driver for driver in self.drivers if driver.alive and driver.epoch == self.epoch), None)

    def open_driver(self):
        """A new driver fences the others and makes visible what is decided."""
        name = f"driver-{self.number()}"
        self.file(name, "driver")
        self.epoch += 1
        self.visible = len(self.decided)
        driver = Driver(name, name, self.epoch)
        self.drivers.append(driver)
        self.note(name, events.Opened(driver=name, namespace=NAMESPACE, epoch=self.epoch))

    def changes(self):
        """A batch's changes; each value is written by one offer alone."""
        number = self.number()
        rows = {}
        for key in self.random.sample(KEYS, self.random.randrange(4)):
            rows[key] = None if self.random.random() < 0.3 else {"by": number, "key": key}
        made = [events.Change(table="rows", rows=rows, replace=self.random.random() < 0.08)]
        if self.random.random() < 0.7:
            made.append(events.Change(table="lists", append={self.random.choice(LISTS): [number]}))
        if self.random.random() < 0.5:
            numbers = {self.random.choice(SUMS): {"n": number * 1_000, "most": number}}
            made.append(events.Change(table="sums", reduce=numbers, reducers={"n": "sum", "most": "max"}))
        made.append(events.Change(table="counts", counts="rows"))
        self.random.shuffle(made)
        return made

    def offer(self):
        driver = self.owner()
        if driver is not None and driver.call is None:
            self.offer_by(driver)

    def offer_by(self, driver, token=""):
        """The next batch of the checkpoint; the same rows again, or others, when it was offered before."""
        batch = self.next_batch
        changes = self.plans.get((self.lineage, batch))
        if changes is None or token or self.random.random() < 0.5:
            changes = self.changes()
        if not token:
            self.plans[self.lineage, batch] = changes
        offer = events.Offered(
            call=self.number(),
            driver=driver.name,
            namespace=NAMESPACE,
            lineage="" if token else self.lineage,
            batch=0 if token else batch,
            fingerprint="" if token else f"offsets-{batch}",
            token=token,
            changes=list(changes),
        )
        self.note(driver.file, offer)
        driver.call = Call(offer, driver)
        self.calls.append(driver.call)
        return driver.call

    def load(self):
        driver = self.owner()
        if driver is not None and driver.call is None:
            self.offer_by(driver, token=f"token-{self.number()}")

    def version_of(self, offer):
        for version, other in enumerate(self.decided, 1):
            if (other.lineage, other.batch, other.token) == (offer.lineage, offer.batch, offer.token):
                return version
        return 0

    def advance(self):
        """One call goes one step on: decide, become visible, return; or it finds itself fenced."""
        if not self.calls:
            return
        call = self.random.choice(self.calls)
        if not call.version:
            if call.driver.epoch != self.epoch:
                self.end(call, error="FencedError")
            elif version := self.version_of(call.offer):
                call.version = version
            else:
                self.decided.append(call.offer)
                self.states.append(fold(self.states[-1], call.offer.changes))
                call.version, call.own = len(self.decided), True
        elif self.visible < call.version:
            if call.driver.epoch != self.epoch:
                self.end(call, error="FencedError")
            else:
                self.visible = call.version
        else:
            self.end(call)

    def end(self, call, error=""):
        """What the driver is told. Only the newest driver moves the checkpoint."""
        self.calls.remove(call)
        call.driver.call = None
        number = call.offer.call
        if error:
            self.note(call.driver.file, events.Raised(call=number, error=error))
            if call.driver.epoch != self.epoch:
                call.driver.alive = False
            return
        own = self.random.choice([None, call.own])
        self.note(call.driver.file, events.Returned(call=number, version=call.version, own=own))
        if call.offer.lineage == self.lineage and call.offer.batch == self.next_batch:
            self.next_batch += 1

    def refuse(self):
        """A call that is not decided raises what proves it."""
        for call in self.calls:
            if not call.version and call.driver.epoch == self.epoch:
                self.lost_offers.append(call.offer)
                self.end(call, error=self.random.choice(["BadRecordError", "FunctionError"]))
                return

    def kill(self):
        driver = self.random.choice(self.drivers)
        if not driver.alive:
            return
        driver.alive = False
        self.note("runner", events.Fault(kind="SIGKILL", target=driver.name))
        if driver.call is not None:
            if not driver.call.version:
                self.lost_offers.append(driver.call.offer)
            self.calls.remove(driver.call)
            driver.call = None

    def zombie(self):
        """A driver that was replaced and does not know it offers the next batch, with rows of its own."""
        for driver in self.drivers:
            if driver.alive and driver.epoch < self.epoch and driver.call is None:
                kept = self.plans.get((self.lineage, self.next_batch))
                call = self.offer_by(driver)
                if kept is not None:
                    self.plans[self.lineage, self.next_batch] = kept
                else:
                    del self.plans[self.lineage, self.next_batch]
                if not self.version_of(call.offer):
                    call.offer.changes[:] = self.changes()
                    self.zombie_offers.append(call.offer)
                return

    def adopt(self):
        """Another checkpoint takes over; what the old one left undecided stays so, for its epoch is over."""
        number = self.number()
        self.note("runner", events.Asked(call=number, namespace=NAMESPACE, command="adopt"))
        self.epoch += 1
        self.visible = len(self.decided)
        self.lineage, self.next_batch = f"lineage-{number}", 0
        self.note("runner", events.Done(call=number, visible=self.visible))
        self.open_driver()

    def recover(self):
        number = self.number()
        if self.owner() is not None and self.random.random() < 0.7:
            return
        self.note("runner", events.Asked(call=number, namespace=NAMESPACE, command="recover"))
        self.epoch += 1
        published, self.visible = len(self.decided) - self.visible, len(self.decided)
        self.note("runner", events.Done(call=number, visible=self.visible, published=published))
        if self.random.random() < 0.5:
            self.open_driver()

    def retire(self):
        number = self.number()
        self.note("runner", events.Asked(call=number, namespace=NAMESPACE, command="retire"))
        self.horizon = max(self.horizon, min(self.visible, self.copy_visible) - self.random.randrange(4))
        self.note("runner", events.Done(call=number, horizon=self.horizon))

    def follow(self):
        self.copy_visible = self.random.randint(self.copy_visible, len(self.decided))

    # -- readers ----------------------------------------------------------------------------------

    def connect(self):
        name = f"reader-{self.number()}"
        self.file(name, "reader")
        store = self.random.choice(["", "", "copy"])
        client = Client(self.number(), name, store)
        self.clients.append(client)
        self.note(name, events.Connected(client=client.number, namespace=NAMESPACE, store=store))

    def newest(self, client):
        return self.copy_visible if client.store else self.visible

    def look(self):
        client = self.random.choice(self.clients)
        began, version = self.began(), self.newest(client)
        self.while_others_go_on()
        self.note(client.file, events.Looked(client=client.number, version=version, began=began))

    def while_others_go_on(self):
        """Before an answer is written down, calls go on."""
        for _ in range(self.random.randrange(3)):
            self.advance()

    def listed(self):
        client = self.random.choice(self.clients)
        if versions := list(range(max(self.horizon, 1), self.newest(client) + 1)):
            event = events.Listed(client=client.number, versions=versions, began=self.began())
            self.note(client.file, event)

    def hold(self):
        client = self.random.choice(self.clients)
        began, version = self.began(), self.newest(client)
        if not version:
            return
        asked = 0
        if self.random.random() < 0.3 and self.horizon:
            version = asked = self.random.randint(min(self.horizon, version), version)
        number = self.number()
        self.while_others_go_on()
        event = events.SnapshotOpened(
            client=client.number, snapshot=number, version=version, began=began, asked=asked
        )
        self.note(client.file, event)
        self.snapshots.append((client, number, version))

    def close(self):
        if self.snapshots:
            client, number, _ = self.snapshots.pop(self.random.randrange(len(self.snapshots)))
            self.note(client.file, events.SnapshotClosed(client=client.number, snapshot=number))

    def read(self):
        if not self.snapshots:
            return
        client, number, version = self.random.choice(self.snapshots)
        if version < self.horizon and self.random.random() < 0.7:
            failed = events.Failed(
                client=client.number,
                snapshot=number,
                what="get",
                error="SnapshotExpiredError",
                began=self.began(),
            )
            self.note(client.file, failed)
            return
        self.answer(client, number, version)

    def loose(self):
        client = self.random.choice(self.clients)
        self.answer(client, 0, self.newest(client))

    def answer(self, client, snapshot, version):
        """A look-up or a scan."""
        table = self.random.choice(["rows", "rows", "lists", "sums", "counts"])
        began = self.began()
        if self.random.random() < 0.4:
            event = events.Scanned(
                client=client.number,
                snapshot=snapshot,
                table=table,
                rows=0,
                digest="",
                began=began,
                content={} if self.random.random() < 0.5 else None,
            )
        else:
            near = self.states[max(version - 1, 0) : version + 1]
            counted = sorted({key for state in near for key in state.get("counts", {})}) or ["0"]
            keys = {"rows": KEYS, "lists": LISTS, "sums": SUMS, "counts": counted}[table]
            keys = self.random.sample(keys, self.random.randint(1, len(keys)))
            event = events.Read(
                client=client.number, snapshot=snapshot, table=table, began=began, absent=keys
            )
        fill(event, self.states[version])
        self.while_others_go_on()
        line = self.note(client.file, event)
        self.answered.append(Answered(line, version, client.store))

    # -- the end ------------------------------------------------------------------------------------

    def settle(self):
        """A last driver takes over, all is read once more, and those who live say that they end."""
        self.adopt() if self.random.random() < 0.2 else self.open_driver()
        for client in self.clients:
            if not client.store and self.visible:
                number = self.number()
                event = events.SnapshotOpened(
                    client=client.number, snapshot=number, version=self.visible, began=self.began()
                )
                self.note(client.file, event)
                for _ in range(4):
                    self.answer(client, number, event.version)
        for driver in self.drivers:
            if driver.alive and driver.call is None:
                self.note(driver.file, events.Ended())

    def write(self, folder):
        """The files of the history."""
        folder.mkdir(parents=True, exist_ok=True)
        files = {}
        for name, event in self.lines:
            files.setdefault(name, []).append(msgspec.json.encode(event) + b"\n")
        for name, lines in files.items():
            (folder / f"{name}.jsonl").write_bytes(b"".join(lines))
        return folder


def fill(event, state):
    """The right answer at a state."""
    table = state.get(event.table, {})
    if isinstance(event, events.Scanned):
        digest = digest_of(table.items())
        event.rows, event.digest = digest.rows, digest.text()
        if event.content is not None:
            event.content = copy.deepcopy(table)
        return
    keys = [*event.found, *event.absent]
    event.found = {key: copy.deepcopy(table[key]) for key in keys if key in table}
    event.absent = [key for key in keys if key not in table]
