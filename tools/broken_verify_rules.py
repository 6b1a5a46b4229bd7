"""Rules of ``verify``, each broken by one edit: see mutants.py."""

from __future__ import annotations

from broken_rules import Rule

COUNTS = "tests/unit/committers/operations/test_verify_counts.py"
ON_REDIS = "tests/services/redis/faults/test_verify.py"

RULES: list[Rule] = [
    (
        "verify-counts-touched-groups-alone",
        "a row of a version in a key group that it did not touch is a finding",
        "committers/operations/verify_counts.py",
        "            if most is not None and row.rows > most:\n",
        "            if most and row.rows > most:\n",
        COUNTS,
    ),
    (
        "verify-trusts-versions-above-the-last",
        "a row of a version that was never decided is a finding",
        "committers/operations/verify_counts.py",
        "        return None if 0 < row.version <= self.last else 0\n",
        "        return None\n",
        COUNTS,
    ),
    (
        "verify-skips-younger-tables",
        "a row from before its table was created is a finding",
        "committers/operations/verify_counts.py",
        "            if min(starts) <= row.version if starts else not may_be_left:\n",
        "            if False:\n",
        COUNTS,
    ),
    (
        "verify-reads-the-log-once",
        "a version that was decided during the check is no finding",
        "committers/operations/verify.py",
        "            state = self._decided_since(state)\n",
        "            pass\n",
        COUNTS,
    ),
    (
        "verify-compares-values-alone",
        "a row with another expiry than the log's is a finding",
        "committers/repair/compare_rows.py",
        "                elif expected is not None and row != stored[key]:  # such as another expiry\n",
        "                elif False:\n",
        COUNTS,
    ),
    (
        "verify-trusts-floors",
        "a floor above the horizon is a finding",
        "sinks/sqlite/checks.py",
        "        if type(floor) is not int or floor > horizon:\n",
        "        if False:\n",
        COUNTS,
    ),
    (
        "verify-trusts-listed-keys",
        "a key that a header lists and its server lost is a finding",
        "sinks/redis/upkeep/self_check.py",
        '        if isinstance(reply, Refused) and reply.code == "TGLOST" and " " not in reply.detail:\n',
        "        if False:\n",
        f"{ON_REDIS}::test_a_listed_layer_and_a_listed_base_without_keys",
    ),
    (
        "verify-trusts-server-ids",
        "a header that names another server than its own is a finding",
        "sinks/redis/upkeep/self_check.py",
        "        if isinstance(reply, Refused):\n            header = ",
        "        if False:\n            header = ",
        f"{ON_REDIS}::test_a_damaged_header_is_a_finding_with_its_place",
    ),
]
