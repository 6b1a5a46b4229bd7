"""Rules of columns that change, of logins and of settings, each broken by one edit: see mutants.py."""

from __future__ import annotations

Rule = tuple[str, str, str, str, str, str]
"""Its name, what it breaks, the file, the text there, the text instead, the tests that should notice."""

EVOLVE = "src/tidegate/values/evolve.py"
CHANGES = "tests/unit/values/test_evolve.py tests/unit/committers/test_schema_changes.py"

RULES: list[Rule] = [
    (
        "schema-lossy-widening",
        "a column widens only to a type that has every older value",
        EVOLVE,
        '"double": ("tinyint", "smallint", "int", "float")',
        '"double": ("tinyint", "smallint", "int", "bigint", "float")',
        CHANGES,
    ),
    (
        "schema-decimal-by-precision",
        "a decimal widens only if neither its digits before the point nor those after it get fewer",
        EVOLVE,
        "narrow_whole <= whole and narrow_scale <= scale",
        "narrow_whole + narrow_scale <= whole + scale",
        CHANGES,
    ),
    (
        "schema-old-name-reused",
        "the old name of a renamed column is no new column: its rows would be read under both",
        EVOLVE,
        "    for name in new.keys() & names.keys():\n",
        "    for name in ():\n",
        CHANGES,
    ),
    (
        "schema-rows-by-name",
        "rows from before a rename are read by the name that they were written with",
        EVOLVE,
        "        by_field = {column.field: column for column in newer.states.get(version, ())}\n",
        "        by_field = {column.name: column for column in newer.states.get(version, ())}\n",
        CHANGES,
    ),
    (
        "schema-rename-repeated",
        "a rename that was decided is not made a second time",
        "committers/rename_column.py",
        "    return any(token.startswith(lead) and token.endswith(end) for token in coordinator.folded.once)",
        "    return False",
        "tests/crash/test_rename.py tests/unit/committers/test_schema_changes.py",
    ),
    (
        "settings-of-anybody",
        "a settings file of another user counts only if it was named",
        "src/tidegate/cli/core/settings_file.py",
        "    if not is_named and mode.st_uid not in (os.geteuid(), 0):\n",
        "    if False:\n",
        "tests/unit/cli/test_settings_file.py",
    ),
    (
        "cassandra-login-forever",
        "a refused login of Cassandra is an error at once, and is not tried until the deadline",
        "sinks/cassandra/client/errors.py",
        "    return isinstance(error, NO_ANSWER) and refused_login(error) is None\n",
        "    return isinstance(error, NO_ANSWER)\n",
        "tests/unit/sinks/cassandra/test_errors.py",
    ),
    (
        "cassandra-renewed-after-close",
        "a Cassandra session that was closed while it connects again leaves no connection",
        "sinks/cassandra/client/session.py",
        "unused = renewed[0] if self._closed else self.cluster",
        "unused = self.cluster",
        "tests/unit/sinks/cassandra/test_errors.py",
    ),
]
