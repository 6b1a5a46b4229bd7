"""Rules of the Spark side's data, each broken by one edit: see mutants.py."""

from __future__ import annotations

Rule = tuple[str, str, str, str, str, str]
"""Its name, what it breaks, the file, the text there, the text instead, the tests that should notice."""

SETTINGS = "tests/spark/test_session_settings.py"

RULES: list[Rule] = [
    (
        "a-lost-shuffle-is-not-noticed",
        "I1: a version has rows of one run of each shuffle, whatever the shuffle manager writes",
        "spark/session/single_runs.py",
        "        return _differs(shuffle) or not any(map(_has_checksum, [*lost, *shuffle.mapStatuses()]))\n",
        "        return _differs(shuffle)\n",
        "tests/unit/spark/test_single_runs.py",
    ),
    (
        "only-the-last-stage-is-asked",
        "I1: the shuffles below a table that was persisted for all batches are asked for, too",
        "spark/session/single_runs.py",
        "                    todo.append(shuffle.rdd())\n",
        "                    pass\n",
        "tests/unit/spark/test_single_runs.py",
    ),
    (
        "a-later-batch-makes-a-namespace",
        "I10: log and store that are gone are not made again under a checkpoint that knows of batches",
        "committers/opening/open.py",
        '            check(Folded("", name, 0, ""))\n',
        "            pass\n",
        "tests/unit/spark/test_missing_batches.py",
    ),
    (
        "the-first-job-switches-the-check-off",
        "I1: the check of lost shuffles is on until the last job of a session has ended",
        "spark/session/whole_retries.py",
        "                while not self._jobs and self._changed:\n",
        "                while self._changed:\n",
        "tests/unit/spark/test_whole_retries.py",
    ),
    (
        "instants-by-the-sessions-name",
        "an instant that is read is one, whatever spark.sql.timestampType is",
        "spark/source/arrow_rows.py",
        '    return INSTANT if name == "timestamp" else name\n',
        "    return name\n",
        f"{SETTINGS}::test_a_setting_changes_nothing_that_is_read",
    ),
    (
        "reduce-casts-by-name",
        "reduce combines instants as instants, whatever spark.sql.timestampType is",
        "spark/calls/reduce.py",
        "    return result.alias(reduced.name)\n",
        "    return result.cast(reduced.type).alias(reduced.name)\n",
        f"{SETTINGS}::test_a_setting_changes_no_stored_byte",
    ),
    (
        "an-error-before-the-batch-is-forgotten",
        "I10: the next batch reports an error that the function swallowed before the batch was known, too",
        "spark/sink.py",
        "self._failures.add(batch_df, batch_id, run_id, error, is_extra=is_extra)\n",
        "pass\n",
        "tests/spark/test_swallowed_errors.py",
    ),
    (
        "a-late-call-is-taken",
        "I10: a call that is still being made when the function returns is in the version, or is refused",
        "spark/calls/collected.py",
        "            self._check_open(call.table)  # the function may have returned meanwhile\n",
        "",
        "tests/spark/test_late_calls.py",
    ),
    (
        "minus-zero-by-the-order-of-rows",
        "T44: of -0.0 and 0.0 any order of the rows gives the same one",
        "spark/calls/reduce.py",
        "                result = _with_sign(reduced, result, source)\n",
        "                pass\n",
        "tests/spark/test_reduce.py::test_minus_zero_keeps_its_sign_whatever_the_order_of_the_rows",
    ),
    (
        "minus-zero-by-the-order-of-batches",
        "T44: of -0.0 and 0.0 the state and a batch give the same one in any order",
        "spark/state/reduce.py",
        "    return pc.or_(pc.or_(pc.greater(one, other), nan), zeros)\n",
        "    return pc.or_(pc.greater(one, other), nan)\n",
        "tests/spark/test_reduce.py::test_minus_zero_keeps_its_sign_whatever_the_order_of_the_rows",
    ),
    (
        "minus-zero-without-its-point",
        "-0.0 is stored as a floating-point number, which keeps its sign",
        "spark/state/reduce.py",
        '"-0.0", array.cast(pa.string()))  # Arrow writes -0\n',
        '"-0", array.cast(pa.string()))\n',
        "tests/spark/test_reduce.py::test_minus_zero_keeps_its_sign_whatever_the_order_of_the_rows",
    ),
]
