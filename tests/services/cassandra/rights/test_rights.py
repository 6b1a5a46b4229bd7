"""Rights in Cassandra: the lists of docs/cassandra.md are enough; with one less a role is told which.

The roles are granted what the page itself says. What they can do to other namespaces of their keyspace is in
docs/threat-model.md, and is shown here, too.
"""

import contextlib
import json
import re
from pathlib import Path

import pytest

import tidegate
from services.support.cassandra.query import query_on
from services.support.cassandra.server import CassandraServer
from services.support.workloads.query import LINEAGE
from support.cli import run
from support.driver_process import MARKER
from tidegate.errors import ConfigError, SnapshotExpiredError
from tidegate.sinks.aliases import Target
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import CatalogEntry, Stamp
from tidegate.sinks.rules.leases import Lease
from tidegate.testing.store.harness import runs_of
from tidegate.wal.frame import Chunk
from tidegate.wal.record import BatchOrigin, TableAt

pytestmark = [pytest.mark.xdist_group("cassandra-rights"), pytest.mark.slow]  # a node of their own

FILE = Path(__file__).parents[4] / "deploy" / "rights" / "cassandra.cql"
PASSWORD = "Pa55-of-all"
AT_ONCE = {"permissions_validity": "0ms", "roles_validity": "0ms"}
"""A right counts at once when it is granted or taken away."""
INIT, WRITER, READER, VIEWER = (f"tidegate_{role}" for role in ("init", "writer", "reader", "viewer"))


def rights_of(role):
    """The rights of a role as the file has them: ``SELECT ON KEYSPACE tidegate``."""
    return re.findall(rf"^GRANT (.*) TO {role};$", FILE.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    roles = dict.fromkeys((INIT, WRITER, READER, VIEWER), PASSWORD)
    settings = {"authorizer": "CassandraAuthorizer", **AT_ONCE}
    with CassandraServer(tmp_path_factory.mktemp("cassandra"), users=roles, settings=settings) as server:
        yield server


class Roles:
    def __init__(self, server, query):
        self.server, self.query = server, query

    def grant(self, role, rights):
        """Of the role's rights on the page these and no others."""
        for right in rights_of(role):
            change = f"GRANT {right} TO" if right in rights else f"REVOKE {right} FROM"
            self.server.ask(f"{change} {role}")

    def url(self, role):
        address = self.server.url.rpartition("@")[2]
        return f"cassandra://{role}:{PASSWORD}@{address}"

    @contextlib.contextmanager
    def gate(self, role, namespace=None, **options):
        of = namespace or self.query.namespace
        with tidegate.connect(self.url(role), of, {"timeout_s": 20.0, **options}) as gate:
            yield gate

    @contextlib.contextmanager
    def store(self, role, namespace=None):
        opened = open_store(self.url(role), namespace or self.query.namespace, {"timeout_s": 20.0})
        with contextlib.closing(opened) as store:
            yield store


@pytest.fixture
def roles(guarded, tmp_path):
    """A query of one namespace. Keyspace and tables are there, made by the role for it."""
    made = Roles(guarded, None)
    guarded.ask(f"GRANT CREATE ON ALL KEYSPACES TO {INIT}")
    options = {"replication": 1, "timeout_s": 60.0}
    with contextlib.closing(open_store(made.url(INIT), "nothing", options)) as store:
        store.prepare()
    for role in (INIT, WRITER, READER, VIEWER):
        made.grant(role, rights_of(role))
    with query_on(made.url(WRITER), tmp_path, create=False) as query:
        made.query = query
        yield made


def a_life(roles):
    """All that a writer does: make, open, commit, retire, open again, repair, vacuum, drop."""
    query, url = roles.query, roles.url(WRITER)
    driver = query.run(5, url)
    query.retire(driver)
    query.retire(query.run(8, url))
    options = [f"--store={url}", f"--wal={query.wal}", f"--namespace={query.namespace}"]
    for command in (["repair", "--force"], ["verify"], ["vacuum"], ["drop", "--yes", "--force"]):
        of = [one for one in options if command[0] != "vacuum" or not one.startswith("--wal")]
        done = run(*command, *of)
        if done.exit_code:
            raise ConfigError(done.output)


def reads(gate):
    with gate.snapshot() as snapshot:
        assert dict(snapshot.table(MARKER).scan())
    assert dict(gate.table(MARKER).scan())
    assert gate.history()


def test_the_rights_of_the_page_are_enough(roles, caplog):
    query = roles.query
    query.retire(query.run(5, roles.url(WRITER)))
    with roles.gate(READER) as gate:
        reads(gate)
    with roles.gate(VIEWER) as gate:
        assert gate.table(MARKER).get(b"m1")
        assert gate.table(MARKER).get_many([b"m1", b"none"])
        caplog.clear()
        reads(gate)  # without leases, which is said once
        assert "no SELECT permission on <table tidegate.tidegate_leases>" in caplog.text
        assert "set store_options={'leases': False}" in caplog.text
        assert caplog.text.count("is read without leases") == 1
        assert PASSWORD not in caplog.text
    with roles.gate(VIEWER, leases=False) as gate:
        reads(gate)
    a_life(roles)


def test_what_doctor_may_not_ask_is_a_warning_that_says_so(roles):
    query = roles.query
    query.run(1, roles.url(WRITER))
    options = [f"--store={roles.url(WRITER)}", f"--wal={query.wal}", f"--namespace={query.namespace}"]

    def barred():
        found = json.loads(run("doctor", "--json", *options).stdout)
        return {one["check"] for one in found if "is barred" in one["found"]}

    assert barred() == {"store: guardrails", "store: value size", "store: commit log"}
    roles.server.ask(f"GRANT SELECT ON KEYSPACE system_views TO {WRITER}")
    assert barred() == set()
    roles.server.ask(f"REVOKE SELECT ON KEYSPACE system_views FROM {WRITER}")


def test_keyspace_tables_and_a_namespace_are_made_and_dropped_with_the_rights_for_that(roles, tmp_path):
    options = [f"--wal=file://{tmp_path}/wal", "--namespace=made"]
    assert run("init", f"--store={roles.url(INIT)}", *options).exit_code == 0
    assert run("drop", "--yes", f"--store={roles.url(INIT)}", *options).exit_code == 0


@pytest.mark.parametrize("less", rights_of(WRITER))
def test_with_one_right_less_a_writer_is_refused_and_told_which(roles, less):
    roles.grant(WRITER, [right for right in rights_of(WRITER) if right != less])
    with pytest.raises(ConfigError, match=f"has no {less.split()[0]} permission on") as told:
        a_life(roles)
    assert PASSWORD not in str(told.value)


@pytest.mark.parametrize("role", [READER, VIEWER])
def test_with_one_right_less_a_reader_is_refused_and_told_which(roles, role):
    roles.query.run(2, roles.url(WRITER))
    for less in rights_of(role):
        roles.grant(role, [right for right in rights_of(role) if right != less])
        kind, _, _, table = less.split()
        with (
            pytest.raises(ConfigError, match=f"has no {kind} permission on <table {table}>"),
            roles.gate(role, leases=role == READER) as gate,
        ):
            reads(gate)


def entry(version):
    return CatalogEntry(version, "d", "a", BatchOrigin(LINEAGE, 0, 99, "f"), 1, {MARKER: TableAt("s")}, {})


WRITES = {
    "claim": lambda store: store.claim(9, "viewer"),
    "heartbeat": lambda store: store.heartbeat(1),
    "end_heartbeat": lambda store: store.end_heartbeat(1),
    "publish": lambda store: store.publish(entry(3), 9),
    "announce": lambda store: store.announce(2),
    "lease": lambda store: store.lease(Lease("l", 2), 60.0),
    "apply": lambda store: store.apply(Stamp(9, 1), Chunk(0, runs_of({MARKER: {b"k": b"v"}}))),
    "rewrite": lambda store: store.rewrite(Stamp(2, 1), runs_of({MARKER: {b"k": b"v"}})),
    "retire": lambda store: store.retire(Stamp(2, 1), {}, [Chunk(0, runs_of({MARKER: {b"k": b"v"}}))]),
    "put_schemas": lambda store: store.put_schemas(store.schemas().values()),
    "alias": lambda store: store.aliases().set("an-alias", Target("n", "u")),
    "drop": lambda store: store.drop(),
}
OF_A_LEASE = {"claim", "heartbeat", "end_heartbeat", "announce", "lease"}
"""What takes no more rights than a lease: a conditional write on the pointer."""


def test_a_viewer_changes_nothing(roles):
    roles.query.run(2, roles.url(WRITER))
    with roles.store(WRITER) as writer, roles.store(VIEWER) as store:
        before = (writer.pointer(), writer.catalog())
        for write in WRITES.values():
            with pytest.raises(ConfigError, match=r"has no (MODIFY|SELECT) permission on"):
                write(store)
        assert (writer.pointer(), writer.catalog()) == before


def test_a_reader_with_leases_changes_no_row_and_may_move_the_pointer_of_every_namespace(roles, tmp_path):
    """What one keyspace shares: rights are on tables, and one table has the pointers of all namespaces."""
    with query_on(roles.url(WRITER), tmp_path / "other", create=False) as other:
        other.run(4, roles.url(WRITER))
        with roles.store(READER, other.namespace) as store:
            for name in WRITES.keys() - OF_A_LEASE - {"publish"}:
                with pytest.raises(ConfigError, match=r"has no (MODIFY|SELECT) permission on"):
                    WRITES[name](store)
            assert store.claim(99, "not the writer") == 99
            assert store.announce(4) == 4
        with roles.gate(READER, other.namespace) as gate, pytest.raises(SnapshotExpiredError):
            gate.snapshot(version=3)
