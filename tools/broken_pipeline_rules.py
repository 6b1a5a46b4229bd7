"""Rules of pipelined commits, each broken by one edit: see mutants.py."""

from __future__ import annotations

Rule = tuple[str, str, str, str, str, str]
"""Its name, what it breaks, the file, the text there, the text instead, the tests that should notice."""

RULES: list[Rule] = [
    (
        "pipeline-newest-first",
        "I7: versions in flight become visible in order",
        "committers/pipeline.py",
        "        in_flight_version = self._line[0]\n        try:",
        "        in_flight_version = self._line[-1]\n        try:",
        "tests/unit/committers/test_pipeline_thread.py",
    ),
    (
        "pipeline-stale-state",
        "I1: local state is read at a base version that is visible",
        "committers/pipeline.py",
        "        if barrier.needs_visible_base:\n",
        "        if False:\n",
        "tests/unit/committers/test_pipeline.py",
    ),
    (
        "pipeline-error-forgotten",
        "I10: an error in the background ends the line and is raised",
        "committers/pipeline.py",
        "            self.failed = error\n",
        "            self._line.popleft()\n            self._visible += 1\n",
        "tests/unit/committers/test_pipeline.py",
    ),
    (
        "pipeline-without-room",
        "I11: no more are decided than may be in flight",
        "committers/pipeline.py",
        "lambda: self.in_flight < most",
        "lambda: True",
        "tests/unit/committers/test_pipeline.py",
    ),
    (
        "pipeline-fences-itself",
        "an own fencing Open fences nothing that is in flight",
        "committers/pipeline.py",
        "                if self._coordinator.epoch == mine.epoch:\n",
        "                if True:\n",
        "tests/unit/committers/test_pipeline.py",
    ),
    (
        "what-a-fenced-driver-decided-stays",
        "I4: a version that a fenced driver decided becomes visible by its successor",
        "committers/commit.py",
        "        coordinator.last_decided == mine.decided.version == base + 1\n",
        "        True\n",
        "tests/unit/committers/test_commit_races.py",
    ),
    (
        "pipeline-leaves-what-a-fenced-driver-decided",
        "I4: so it is in the line of a pipelined driver",
        "committers/pipeline.py",
        "        for each in decided_since(self._coordinator, base, in_flight_version):\n",
        "        for each in [in_flight_version]:\n",
        "tests/unit/committers/test_commit_races.py",
    ),
    (
        "pipeline-takes-a-repair-for-corruption",
        "a repair beside may publish ahead of the line",
        "committers/steps/publish.py",
        "                        coordinator.decisions.catch_up()  # a repair",
        "                        pass  # a repair",
        "tests/unit/committers/test_pipeline.py",
    ),
    (
        "pipeline-schemas-of-the-store-alone",
        "the next batch knows the tables of what is in flight",
        "committers/pipeline.py",
        "            self._schemas.update(in_flight_version.manifest.schemas)\n",
        "            pass\n",
        "tests/unit/committers/test_pipeline.py",
    ),
    (
        "in-flight-frames-unread",
        "I1: a key that a version in flight changed is read from its frames",
        "sinks/cache/state_at.py",
        "        values = self._of_frames(table, start, rows)\n",
        "        values = pa.nulls(len(rows), pa.binary())\n",
        "tests/unit/sinks/cache/test_state_at.py",
    ),
    (
        "in-flight-oldest-first",
        "I1: of several versions in flight the newest change of a key counts",
        "sinks/cache/state_at.py",
        "newest([_NOTHING, *batches])",
        "newest([_NOTHING, *batches[::-1]])",
        "tests/unit/sinks/cache/test_state_at.py",
    ),
    (
        "in-flight-before-the-start",
        "I1: rows from before a table was emptied are no state",
        "sinks/cache/state_at.py",
        " if version >= start]",
        "]",
        "tests/unit/sinks/cache/test_state_at.py",
    ),
    (
        "cache-behind-as-it-is",
        "I1: a cache of an earlier version holds with all changes since, and not without",
        "sinks/cache/cache.py",
        "                self._catch_up(at.version)\n",
        "                pass\n",
        "tests/unit/sinks/cache/test_cache.py",
    ),
]
