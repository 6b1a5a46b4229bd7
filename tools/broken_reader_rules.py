"""Rules of the Python reader, broken on purpose: name, rule, file, text, its replacement, its check.

``tests/services/redis/reader/test_reader_mutants.py`` drives each by the conformance program, whose own code
is whole. Its part of docs/mutants.md is written from here.
"""

from broken_value_rules import RULES as VALUE_RULES

FLOW, RULES_FILE = "src/tidegate/reader/flow/gate.py", "src/tidegate/reader/rules.py"
READS, REPLIES = "sinks/redis/reads.py", "sinks/redis/client/replies.py"
CALLS, LEASES = "sinks/redis/client/calls.py", "src/tidegate/reader/leases/active.py"

RULES = [
    *VALUE_RULES,
    # -- the pointer and versions
    (
        "latest-of-any-version",
        "an entry beside the pointer counts only if it is of the visible version",
        FLOW,
        "        if entry is None or not rules.is_of(entry, pointer):\n",
        "        if entry is None:\n",
        "latest-of-another-version",
    ),
    (
        "back-to-an-older-version",
        "a reader never goes back",
        RULES_FILE,
        "if pointer.visible < before.visible:",
        "if False:",
        "refuses-never-back",
    ),
    (
        "another-history",
        "a version with another digest is of another history",
        RULES_FILE,
        "if pointer.visible == before.visible and pointer.digest != before.digest:",
        "if False:",
        "refuses-other-history",
    ),
    (
        "removed-store",
        "a store with the note of a removal is left",
        FLOW,
        "if pointer.writer[:1] == REMOVAL_BEGINS:",
        "if False:",
        "refuses-removed-meanwhile",
    ),
    (
        "fill-is-no-version",
        "a store that is being filled is not empty",
        RULES_FILE,
        "        raise being_filled(where, pointer)\n    return pointer.visible",
        "        pass\n    return pointer.visible",
        "refuses-filling",
    ),
    (
        "fill-after-a-version",
        "a filling counts before what was seen",
        RULES_FILE,
        "if (pointer.filling_at or pointer.lost or not pointer.visible) and before.visible:",
        "if False:",
        "refuses-filling-meanwhile",
    ),
    (
        "above-the-visible-version",
        "a version above the visible one may be half written",
        RULES_FILE,
        "    if version > visible:\n        raise ConfigError(",
        "    if False:\n        raise ConfigError(",
        "wrong-arguments",
    ),
    (
        "version-0",
        "versions begin with 1",
        RULES_FILE,
        "not isinstance(value, int) or not 1 <= value < 2**63:",
        "not isinstance(value, int) or not 0 <= value < 2**63:",
        "wrong-arguments",
    ),
    (
        "hidden-tables",
        "the tables of timeouts are in no list",
        "src/tidegate/base/names.py",
        "return sorted(name for name in tables if not name.startswith(UNLISTED))",
        "return sorted(tables)",
        "tables",
    ),
    (
        "rows-from-before-the-start",
        "rows from before a table was emptied do not count",
        "sinks/records.py",
        "return ReadAt(table, self.version, table_at.start, table_at",
        "return ReadAt(table, self.version, 0, table_at",
        "rows-emptied",
    ),
    (
        "half-a-pointer",
        "a pointer that lacks a field is damaged",
        READS,
        "writer.decode()), frozenset",
        '(writer or b"").decode()), frozenset',
        "refuses-no-writer",
    ),
    # -- names
    (
        "alias-of-the-first-read",
        "an alias is read before each read",
        "src/tidegate/reader/alias_gate.py",
        "            return rules.checked_alias((yield self._read_alias()), self.where, self.alias)",
        (
            "            if not hasattr(self, 'first'):\n"
            "                self.first = yield self._read_alias()\n"
            "            return rules.checked_alias(self.first, self.where, self.alias)"
        ),
        "alias",
    ),
    (
        "alias-of-any-uuid",
        "an alias names one namespace, by its uuid",
        RULES_FILE,
        "if identity is None or identity.uuid != target.uuid:",
        "if identity is None:",
        "wrong-alias",
    ),
    (
        "half-an-alias",
        "an alias that lacks a field is damaged",
        "sinks/redis/aliases.py",
        "if NAME.fullmatch(namespace) is None or not uuid:",
        "if False:",
        "refuses-half-an-alias",
    ),
    (
        "not-ready",
        "a namespace that is not complete is not there",
        READS,
        "    if fields[0] is None or fields[1] is None:\n",
        "    if fields[0] is None:\n",
        "refuses-not-ready",
    ),
    # -- calls of Redis
    (
        "keys-without-a-limit",
        "one call has a thousand keys at most",
        READS,
        "KEYS_AT_ONCE = 500",
        "KEYS_AT_ONCE = 1 << 30",
        "many-keys",
    ),
    (
        "server-that-is-not-listed",
        "a server that the pointer does not list is refused",
        CALLS,
        "elif server_id in accepted_ids or self._accept(server_id):",
        "elif True:",
        "refuses-server-not-listed",
    ),
    (
        "server-of-an-older-version",
        "the id of a server is sent only while it is listed",
        CALLS,
        "if call.at_server and node.server_id in self._listed() else",
        "if call.at_server else",
        "refuses-server-replaced",
    ),
    (
        "scan-of-one-page",
        "a scan ends when its cursor is 0",
        READS,
        'if self._server and self._cursor == b"0":',
        "if self._server:",
        "rows-large",
    ),
    (
        "scan-keeps-the-last-value",
        "of a key that comes more than once the first value counts",
        "sinks/sorted_rows.py",
        "            if key not in self._rows:\n",
        "            if True:\n",
        "rows-large",
    ),
    (
        "gone-is-a-mistake",
        "a namespace that was there and is gone is lost",
        READS,
        "return lost(where) if opened else nothing_here(where)",
        "return nothing_here(where)",
        "refuses-gone",
    ),
    (
        "expired-at-once",
        "the newest version that was retired is read again",
        FLOW,
        (
            "        for _ in range(TRIES - 1):\n"
            "            with contextlib.suppress(SnapshotExpiredError):\n"
            "                return (yield from steps(*args))\n        return (yield from steps(*args))"
        ),
        "        return (yield from steps(*args))",
        "refusals-of-lease",
    ),
    (
        "scan-expired-at-once",
        "a scan leaves a version that is retired before its first row",
        "src/tidegate/reader/table.py",
        "for _ in range(TRIES - 1):  # the version may be",
        "for _ in ():  # the version may be",
        "refusals-of-scan",
    ),
    (
        "refused-and-read-again",
        "a snapshot that was refused is refused for good",
        LEASES,
        "if self.revoked is None and not self._has_run_out:",
        "if False:",
        "refusals-of-read",
    ),
    (
        "lease-that-ran-out",
        "a snapshot whose lease was not renewed in time is refused",
        LEASES,
        "if self._has_run_out or clock.monotonic() >= self.deadline:",
        "if False:",
        "lease-lapses",
    ),
    (
        "lease-without-renewal",
        "a lease is renewed",
        LEASES,
        "self.due = deadline - ttl_s * (1 - 1 / PER_TTL)",
        "self.due = math.inf",
        "kept",
    ),
    (
        "busy-is-final",
        "a busy server is asked again",
        REPLIES,
        '("BUSY", Effect.LATER)',
        '("BUSY", Effect.MISTAKE)',
        "refusals-of-read",
    ),
    (
        "loading-is-final",
        "a server that loads its data is asked again",
        REPLIES,
        '("LOADING", Effect.LATER)',
        '("LOADING", Effect.MISTAKE)',
        "refusals-of-read",
    ),
    (
        "read-only-is-final",
        "a replica is asked no more, its primary is",
        REPLIES,
        '("READONLY", Effect.ELSEWHERE)',
        '("READONLY", Effect.MISTAKE)',
        "refusals-of-read",
    ),
    (
        "unknown-error-is-final",
        "an error of a later release may pass",
        REPLIES,
        "if part in message), Effect.LATER)",
        "if part in message), Effect.MISTAKE)",
        "refusals-of-read",
    ),
    (
        "damage-passes",
        "a key of another type is damage",
        REPLIES,
        '("WRONGTYPE", Effect.DAMAGE)',
        '("WRONGTYPE", Effect.LATER)',
        "refusals-of-read",
    ),
    (
        "login-passes",
        "a refused login is refused at once",
        CALLS,
        "except exceptions.AuthenticationError as refused:  # likewise",
        "except exceptions.NoScriptError as refused:",
        "refusals-of-read",
    ),
    (
        "functions-are-gone",
        "functions that are missing are looked for again",
        CALLS,
        "            elif answer is NextAction.LOAD:\n                node.ready = False\n",
        "            elif answer is NextAction.LOAD:\n                raise denied(self.where, error)\n",
        "refusals-of-read",
    ),
    (
        "no-lease-no-snapshot",
        "a server that takes no writes is read without leases",
        "sinks/rules/leases.py",
        "        if not refusal.writes_refused:\n            raise\n",
        "        raise\n",
        "refusals-of-lease",
    ),
    (
        "too-many-leases",
        "a server with too many leases is read without one",
        READS,
        'case "TGLEASES":\n            return too_many_leases(where, int(refused.detail))',
        (
            'case "TGLEASES":\n            error = too_many_leases(where, int(refused.detail))\n'
            "            error.writes_refused = False\n            return error"
        ),
        "refusals-of-lease",
    ),
    (
        "unknown-refusal-is-expiry",
        "a refusal of a later release is damage",
        READS,
        '        case _:\n            return CorruptError(f"{where}: {refused.code} {refused.detail}")',
        "        case _:\n            return SnapshotExpiredError(refused.code)",
        "refusals-of-read",
    ),
]
