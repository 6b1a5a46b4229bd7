"""The conformance program: the reference reader passes, and a reader that breaks a rule fails."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from unittest import mock

import pytest

from tidegate.errors import ConfigError
from tidegate.reader import rules, table
from tidegate.reader.alias_gate import AliasGate
from tidegate.sinks.open_store import open_store
from tidegate.sinks.rules import layout
from tidegate.sinks.sqlite.disk.files import Files
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.testing.conformance.program import ReaderFailedError, ReaderRaisedError, UnsupportedRequestError
from tidegate.testing.conformance.reader import ReferenceReader
from tidegate.testing.conformance.refusals import ON_REDIS
from tidegate.testing.conformance.run import FAILED, PASSED, SKIPPED, conformance, outcome_of
from tidegate.testing.conformance.session import Session, live_of
from tidegate.testing.conformance.vectors.faults import FAULTS
from tidegate.testing.conformance.writer import Place

PROGRAM = f"{sys.executable} -m tidegate.testing.conformance.reader"


class LocalReader:
    """A reader in this process; ``patches`` break it while it answers."""

    def __init__(self, reader, patches=()):
        self.reader, self.patches, self.reply, self.ids = reader, patches, None, 0

    def ask(self, do, **arguments):
        self.send(do, **arguments)
        return self.receive()

    def send(self, do, **arguments):
        self.ids += 1
        with contextlib.ExitStack() as patched:
            for patch in self.patches:
                patched.enter_context(patch())
            request = json.loads(json.dumps({"id": self.ids, "do": do, **arguments}))
            try:
                self.reply = json.loads(json.dumps(self.reader.answer(request)))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ReaderFailedError(repr(error)) from error

    def receive(self, extra_s=0.0):
        assert self.reply["id"] == self.ids
        if "unsupported" in self.reply:
            raise UnsupportedRequestError
        if "error" in self.reply:
            raise ReaderRaisedError(self.reply["error"], self.reply["message"])
        return self.reply["ok"]

    def close(self):
        self.ask("close")
        return 0

    def end(self):
        self.reader.close()


def test_the_reference_reader_passes(tmp_path):
    results = conformance(PROGRAM, f"sqlite://{tmp_path}/store")
    wrong = [result for result in results if result.outcome == FAILED]
    assert not wrong
    skipped = [result.name for result in results if result.outcome == SKIPPED]
    assert skipped == [*ON_REDIS, *FAULTS]
    assert [path.name for path in (tmp_path / "store").iterdir()] == [".tidegate"]


# -- a reader that breaks a rule ----------------------------------------------------------------------


class Inexact(ReferenceReader):
    """Numbers pass through a double."""

    def answer(self, request):
        return inexact(super().answer(request))


def inexact(value):
    match value:
        case dict():
            return {name: inexact(part) for name, part in value.items()}
        case list():
            return [inexact(part) for part in value]
        case str() if len(value) > 15 and value.lstrip("-").isdigit():
            return str(int(float(value)))
    return value


class Unnamed(ReferenceReader):
    """A renamed column is looked for by its new name."""

    def scan(self, table, snapshot=None):
        answer = super().scan(table, snapshot)
        rows = [
            [key, value | {"airline": None} if "airline" in value else value] for key, value in answer["rows"]
        ]
        return {**answer, "rows": rows}


class Forgetful(ReferenceReader):
    """The newest version that was seen is forgotten."""

    def answer(self, request):
        if self._gate is not None:
            self._gate._seen, self._gate._entry = rules.Pointer(), None
        return super().answer(request)


class Unpinned(ReferenceReader):
    """A snapshot's reads are of the newest version."""

    def scan(self, table, snapshot=None):
        return super().scan(table)

    def get_many(self, keys, snapshot=None):
        return super().get_many(keys)


class AliasFirst(ReferenceReader):
    """An alias counts before a namespace of its name."""

    def connect(self, url, namespace, options=None):
        with contextlib.closing(open_store(url, namespace, options)) as store:
            named = store.aliases().get(namespace)
        return super().connect(url, namespace if named is None else named.namespace, options)


class OneStride(ReferenceReader):
    """Keys are looked for as if every table had all key groups."""

    def _do(self, name, arguments):
        return super()._do(name, arguments | {"stride": 1} if name == "encode_key" else arguments)


class Expired(ReferenceReader):
    """A retired version is taken for one without rows."""

    def snapshot(self, version=None, lease_s=60.0):
        try:
            return super().snapshot(version, lease_s)
        except rules.SnapshotExpiredError:
            return super().snapshot() | {"version": version}


class Tolerant(ReferenceReader):
    """What cannot be read is absent."""

    def answer(self, request):
        answer = super().answer(request)
        lenient = answer.get("error") in ("CorruptError", "ConfigError") and request["do"] in (
            "get",
            "decode_value",
        )
        return {"id": request["id"], "ok": {"version": 3, "value": None}} if lenient else answer


def shown_at(at_us):
    """Stored values are read at another time than the version's."""
    return [
        lambda: mock.patch(
            "tidegate.sinks.rules.reads.payload", lambda stored, _: layout.payload(stored, at_us)
        ),
        lambda: mock.patch(
            "tidegate.sinks.rules.reads.payloads", lambda stored, _: layout.payloads(stored, at_us)
        ),
    ]


def deletes_shown():
    def payload(stored, at_us):
        return b"{}" if stored == b"-" else layout.payload(stored, at_us)

    def payloads(stored, at_us):
        return layout.column_of([payload(one, at_us) for one in stored.to_pylist()])

    return [
        lambda: mock.patch("tidegate.sinks.rules.reads.payload", payload),
        lambda: mock.patch("tidegate.sinks.rules.reads.payloads", payloads),
    ]


def viewed(**other):
    """The table's view at a version has other fields than the version's entry."""

    def view_of(*args):
        view = table.view_of(*args)
        return None if view is None else view._replace(at=view.at._replace(**other))

    return [lambda: mock.patch("tidegate.reader.flow.reader.view_of", view_of)]


def one_page():
    rows = table.TableReader.rows
    return [
        lambda: mock.patch.object(table.TableReader, "rows", lambda self: itertools.islice(rows(self), 1_000))
    ]


def first_alias():
    targets = []
    read_alias = AliasGate._read_alias

    def kept(self):
        targets.append(read_alias(self))
        return targets[0]

    return [lambda: mock.patch.object(AliasGate, "_read_alias", kept)]


def first_file():
    """The mark of a file is taken for the expected one."""
    connect = Files._connect_checked

    def connected(self, name, *parameters):
        expected, self.expected = self.expected, {}
        try:
            return connect(self, name, *parameters)
        finally:
            self.expected = expected

    return [lambda: mock.patch.object(Files, "_connect_checked", connected)]


def unchecked(name, result=0):
    """A check is not made; ``result`` is the place of the argument that it returns."""
    return [lambda: mock.patch(name, lambda *args: args[result])]


RULES = {
    "expiry by another time than the version's": (ReferenceReader, shown_at(0), "rows-expired"),
    "the reader's clock": (ReferenceReader, shown_at(2**62), "rows-expired"),
    "the stride of a table": (ReferenceReader, viewed(stride=1), "rows-few-key-groups"),
    "the stride in a key group": (OneStride, [], "vectors-keys"),
    "the start of a table": (ReferenceReader, viewed(start=0), "rows-emptied"),
    "delete markers": (ReferenceReader, deletes_shown(), "rows-deleted"),
    "exact numbers": (Inexact, [], "vectors-values"),
    "exact numbers in rows": (Inexact, [], "rows-types"),
    "the field of a renamed column": (Unnamed, [], "rows-evolved"),
    "the scan to its end": (ReferenceReader, one_page(), "rows-large"),
    "one version for a snapshot": (Unpinned, [], "rows-deleted"),
    "the newest version seen": (Forgetful, [], "refuses-never-back"),
    "the history seen": (Forgetful, [], "refuses-other-history"),
    "the alias before each read": (ReferenceReader, first_alias(), "alias"),
    "the target's uuid": (ReferenceReader, unchecked("tidegate.reader.rules.checked_target"), "wrong-alias"),
    "a namespace before an alias of its name": (AliasFirst, [], "alias-of-a-namespace"),
    "the format": (
        ReferenceReader,
        unchecked("tidegate.sinks.sqlite.store.checked_format", 1),
        "refuses-format",
    ),
    "the namespace of a file": (ReferenceReader, first_file(), "refuses-other-file"),
    "the end of a file": (
        ReferenceReader,
        unchecked("tidegate.sinks.sqlite.newest.compare"),
        "refuses-cut-file",
    ),
    "the tables of timeouts": (
        ReferenceReader,
        [lambda: mock.patch("tidegate.reader.flow.gate.listed", sorted)],
        "tables",
    ),
    "a version above the visible one": (
        ReferenceReader,
        unchecked("tidegate.reader.rules.check_is_visible"),
        "wrong-arguments",
    ),
    "the note of a removed store": (
        ReferenceReader,
        [lambda: mock.patch("tidegate.reader.flow.gate.REMOVAL_BEGINS", "no such note")],
        "refuses-removed",
    ),
    "a store that is being filled": (
        ReferenceReader,
        [lambda: mock.patch("tidegate.reader.rules.newest_of", lambda pointer, _: pointer.visible)],
        "refuses-filling",
    ),
    "a snapshot of a retired version": (Unpinned, [], "snapshot-revoked"),
    "unknown flags": (Tolerant, [], "refuses-unknown-flag"),
    "values that do not fit": (Tolerant, [], "vectors-values"),
    "unknown value formats": (Tolerant, [], "refuses-value-format"),
    "a retired version": (Expired, [], "retired"),
}
"""Rules, each with a reader that breaks it and the check that has to notice."""


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    folder = tmp_path_factory.mktemp("conformance")
    session = Session(Place(f"sqlite://{folder}/store", {}, f"file://{folder}/wal"), "conformance-test", None)
    yield session
    assert session.clean_up() == []


def outcome_by(reader, check, session):
    session.restart()
    session.starts, session.start = 0, lambda: reader
    return outcome_of(check, session).outcome


@pytest.fixture(scope="module")
def passed():
    """The checks that the reference reader has passed here."""
    return set()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("rule", RULES)
def test_a_reader_that_breaks_a_rule_fails(rule, session, passed):
    broken, patches, check = RULES[rule]
    if check not in passed:
        assert outcome_by(LocalReader(ReferenceReader()), check, session) == PASSED
        passed.add(check)
    assert outcome_by(LocalReader(broken(), patches), check, session) == FAILED


# -- a program that breaks the protocol ---------------------------------------------------------------


@pytest.mark.parametrize(
    "command, cause",
    [
        ("true", "it ended"),
        ("cat", "has not its id and one of ok"),
        ("sh -c 'read request; echo hello'", "is no JSON object"),
        ("sh -c 'echo broken >&2; exit 3'", "exit code 3; its last line: broken"),
        ("sh -c 'head -c 300000 /dev/zero >&2; echo >&2; echo broken >&2'", "its last line: broken"),
    ],
)
def test_a_program_that_breaks_the_protocol_fails(command, cause, tmp_path):
    results = conformance(command, f"sqlite://{tmp_path}/store", only=["vectors-keys", "vectors-values"])
    assert [result.outcome for result in results] == [FAILED, FAILED]
    assert cause in results[0].text


@pytest.mark.parametrize("place", ["begin", "publish", "create"])
def test_what_is_interrupted_is_removed(tmp_path, monkeypatch, place):
    """A namespace whose history was being made stayed in the store, without a word."""
    reader = LocalReader(ReferenceReader())
    session = Session(Place(f"sqlite://{tmp_path}/s", {}, f"file://{tmp_path}/wal"), "c", lambda: reader)
    effect = getattr(SqliteStore, place)

    def interrupted(store, *given):
        effect(store, *given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, place, interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.writer("live", live_of)
    assert open_store(f"sqlite://{tmp_path}/s", "c-live").identity() is not None
    assert session.clean_up() == []
    assert open_store(f"sqlite://{tmp_path}/s", "c-live").identity() is None


def test_a_program_that_supports_nothing_passes_nothing(tmp_path):
    script = tmp_path / "reader"
    script.write_text(
        "import json, sys\nfor line in sys.stdin:\n"
        "    print(json.dumps({'id': json.loads(line)['id'], 'unsupported': True}), flush=True)\n"
    )
    only = ["vectors-keys", "vectors-values"]
    results = conformance(f"{sys.executable} {script}", f"sqlite://{tmp_path}/store", only=only)
    assert [result.outcome for result in results] == [SKIPPED, SKIPPED]


@pytest.mark.parametrize(
    "command, store, only, cause",
    [
        ("", "sqlite:///nowhere", (), "is empty"),
        ("'unclosed", "sqlite:///nowhere", (), "cannot be parsed"),
        ("no-such-program", "sqlite:///nowhere", (), "is no program"),
        ("cat", "memory://here", (), "memory is not shared"),
        ("cat", "sqlite:///nowhere", ("rows-type",), "did you mean 'rows-types'"),
    ],
)
def test_what_cannot_begin_is_refused(command, store, only, cause):
    with pytest.raises(ConfigError, match=cause):
        conformance(command, store, only=only)
