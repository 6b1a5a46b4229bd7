"""The spillable buffer under any order of calls."""

import os
import shutil

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from support.cache.buffers import KIB, contents_of, files_of, lengths_of
from tidegate.base.local_dir import LocalDir
from tidegate.sinks.cache.buffer.buffer import Buffer
from tidegate.sinks.cache.buffer.limits import BufferLimits


class AnyOrder(RuleBasedStateMachine):
    """Two buffers over the same folders beside a dict of contents; every view is looked at each time."""

    folder = None

    def __init__(self):
        super().__init__()
        self.root = AnyOrder.folder / os.urandom(8).hex()
        self.locals = [
            LocalDir(str(self.root / name), "flights", "u1")
            for _ in range(2)
            for name in ("memory", "disk0", "disk1")
        ]
        limits = BufferLimits(memory_bytes_max=20 * KIB, disk_bytes_max=60 * KIB, file_bytes=4 * KIB)
        self.buffers = [Buffer(one, [*rest], limits) for one, *rest in (self.locals[:3], self.locals[3:])]
        self.kept, self.views, self.serial = {}, [], 0

    def teardown(self):
        self.views.clear()
        for local in self.locals:
            local.close()
        shutil.rmtree(self.root)

    @rule(
        who=st.integers(0, 1),
        group=st.integers(0, 2),
        sizes=st.lists(st.integers(1, 6 * KIB), max_size=4),
        tier=st.sampled_from(["memory", "disk", None]),
        keep=st.booleans(),
        data=st.data(),
    )
    def write(self, who, group, sizes, tier, keep, data):
        with self.buffers[who].claim(str(group)) as held:
            known = list(zip(held.segments, self.kept.get(group, []), strict=True))
            for size in sizes:
                self.serial += 1
                content = self.serial.to_bytes(4, "big") * size
                segment = held.write([content[:size]], tier)
                if segment is not None:
                    assert held.view(segment).to_pybytes() == content[:size]
                    known.append((segment, content[:size]))
            if keep:
                chosen = [pair for pair in known if data.draw(st.booleans())]
                assert held.keep([segment for segment, _ in chosen], b"%d" % group)
                self.kept[group] = [content for _, content in chosen]

    @rule(who=st.integers(0, 1), group=st.integers(0, 2))
    def view(self, who, group):
        with self.buffers[who].claim(str(group)) as held:
            contents = self.kept.get(group, [])
            self.views += [
                (held.view(segment), content)
                for segment, content in zip(held.segments, contents, strict=True)
            ]

    @precondition(lambda self: self.views)
    @rule(data=st.data())
    def look_away(self, data):
        self.views.pop(data.draw(st.integers(0, len(self.views) - 1)))

    @rule(who=st.integers(0, 1), group=st.integers(0, 2), tier=st.sampled_from(["memory", "disk"]))
    def move(self, who, group, tier):
        with self.buffers[who].claim(str(group)) as held:
            moved = held.move(tier)
            assert moved == 0 or {segment.tier for segment in held.segments} == {tier}

    @rule(who=st.integers(0, 1), group=st.integers(0, 2))
    def drop(self, who, group):
        with self.buffers[who].claim(str(group)) as held:
            held.drop()
        self.kept.pop(group, None)

    @invariant()
    def views_show_what_was_written(self):
        for view, content in self.views:
            assert view.to_pybytes() == content

    @invariant()
    def what_is_kept_is_there_and_nothing_else(self):
        buffer = self.buffers[0]
        for group, contents in self.kept.items():
            assert contents_of(buffer, group) == contents
        for tier in ("memory", "disk"):
            assert buffer.used_bytes(tier) == lengths_of(buffer, tier) <= buffer.limit(tier)
            named = {
                segment.file
                for note in buffer.notes().values()
                for segment in note.segments
                if segment.tier == tier
            }
            assert {path.name for path in files_of(buffer, tier)} == named


def test_any_order_of_calls(tmp_path):
    AnyOrder.folder = tmp_path
    quiet = settings(
        max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    run_state_machine_as_test(AnyOrder, settings=quiet)
