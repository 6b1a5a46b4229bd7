"""Rules of a rekey, broken on purpose."""

TEST = "tests/unit/committers/transfer/test_rekey.py"
RULES = [
    (
        "rekey-forgets-the-last-batch",
        "I2: a copy has the origin of its source's last batch, so that its replay is found",
        "committers/transfer/rekey/versions.py",
        "batch.origin if batch else source.first",
        "source.first",
        TEST,
    ),
    (
        "rekey-forgets-loads",
        "I2: a load that its source has is known to a copy",
        "committers/transfer/rekey/begin.py",
        "(*own_tokens(state), ",
        "(",
        TEST,
    ),
    (
        "rekey-loses-a-version",
        "I1: a copy has each version of its source",
        "committers/transfer/rekey/move.py",
        "copied + 1, visible):",
        "copied + 1, visible)[1:]:",
        TEST,
    ),
    (
        "rekey-opens-too-early",
        "I2: a query does not start in a copy that lacks versions",
        "committers/opening/open.py",
        "            refuse_unfinished(state)\n",
        "",
        TEST,
    ),
    (
        "rekey-leaves-its-source-open",
        "I6: a query that was moved does not start in its old namespace again",
        "committers/transfer/rekey/move.py",
        "        append_adopted(old.decisions, moved.as_lineage(), COMMAND)\n",
        "",
        TEST,
    ),
    (
        "rekey-compares-nothing",
        "I10: a copy that differs from its source is never switched to",
        "committers/transfer/rekey/compare.py",
        "    if wrong:\n",
        "    if False:\n",
        TEST,
    ),
    (
        "rekey-keeps-the-queue",
        "due times of a copy are queued in its own key groups",
        "committers/transfer/rekey/versions.py",
        '    return table.startswith(f"{QUEUE}.")\n',
        "    return False\n",
        TEST,
    ),
]
