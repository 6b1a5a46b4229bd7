"""The space allocator, beside a naive one that marks every unit of every file."""

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tidegate.sinks.cache.buffer.allocator import ALIGNMENT, FileName, SpaceAllocator, aligned

UNITS = 16
"""The file size in units of the alignment."""
FILES = [FileName(path, f"f{number}") for number in range(3) for path in range(2)]


class Naive:
    """A file is a list of units: a number for who has it, None for free."""

    def __init__(self):
        self.files = {}

    def first_fit(self, units, usable, reusable):
        for name, file in self.files.items():
            used_before = range(len(file)) if name in reusable else ()
            for start in (*used_before, len(file)):
                free = all(unit is None for unit in file[start : start + units])
                fits = start + units <= max(len(file), UNITS) or not file
                if name in usable and free and fits:
                    return name, start
        return None


class Beside(RuleBasedStateMachine):
    """Every call to the allocator and to the naive one."""

    @initialize()
    def start(self):
        self.space, self.naive, self.taken, self.next = SpaceAllocator(UNITS * ALIGNMENT), Naive(), {}, 0

    @precondition(lambda self: len(self.space.files()) < len(FILES))
    @rule()
    def add(self):
        file = next(file for file in FILES if file not in self.naive.files)
        self.space.add(file)
        self.naive.files[file] = []

    @rule(
        size=st.integers(1, 20 * ALIGNMENT),
        usable=st.sets(st.sampled_from(FILES)),
        reusable=st.sets(st.sampled_from(FILES)),
        undo=st.integers(0, 4).map(lambda number: number == 0),
    )
    def take(self, size, usable, reusable, undo):
        asked = []

        def may_reuse(file):
            asked.append(file)
            return file in reusable

        place = self.space.take(size, usable.__contains__, may_reuse)
        assert len(asked) == len(set(asked))
        units = aligned(size) // ALIGNMENT
        wanted = self.naive.first_fit(units, usable, reusable)
        if wanted is None:
            assert place is None
            return
        file, start = wanted
        length = len(self.naive.files[file])
        assert place == (file, start * ALIGNMENT, max(0, start + units - length) * ALIGNMENT)
        if start < length:
            assert file in asked, "space that was used before is taken without asking"
        if undo:
            self.space.undo(place, size)
            return
        self.naive.files[file] += [None] * (start + units - length)
        self.naive.files[file][start : start + units] = [self.next] * units
        self.taken[self.next] = (file, start * ALIGNMENT, size)
        self.next += 1

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def free(self, data):
        number = data.draw(st.sampled_from(sorted(self.taken)))
        file, offset, size = self.taken.pop(number)
        self.space.free(file, offset, size)
        units = self.naive.files[file]
        self.naive.files[file] = [None if unit == number else unit for unit in units]
        with pytest.raises(ValueError, match="is free already"):
            self.space.free(file, offset, size)

    @rule()
    def remove_what_is_empty(self):
        for file in self.space.empty():
            assert self.space.remove(file) == len(self.naive.files[file]) * ALIGNMENT
            assert all(unit is None for unit in self.naive.files.pop(file))

    @rule()
    def made_again_from_what_is_taken(self):
        """As the next task does, from the note and the files' lengths."""
        again = SpaceAllocator(UNITS * ALIGNMENT)
        for file, units in self.naive.files.items():
            again.add(file, len(units) * ALIGNMENT + 13)
        for file, offset, size in self.taken.values():
            again.occupy(file, offset, size)
            with pytest.raises(ValueError, match="is not free"):
                again.occupy(file, offset, size)
        self.space = again

    @invariant()
    def the_free_parts_are_those_of_the_naive_one(self):
        for name, units in self.naive.files.items():
            file = self.space._files[name]
            parts = [range(low // ALIGNMENT, high // ALIGNMENT) for low, high in file.free_parts()]
            assert [at for part in parts for at in part] == [
                at for at, unit in enumerate(units) if unit is None
            ]
            assert all(left.stop < right.start for left, right in itertools.pairwise(parts)), (
                "free neighbours are not one part"
            )


TestBeside = Beside.TestCase
TestBeside.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_what_is_not_in_a_file_cannot_be_occupied():
    space, file = SpaceAllocator(1024), FileName(0, "a")
    space.add(file, 128)
    for name, offset, size in ((file, 128, 1), (file, 64, 65), (file, 32, 8), (FileName(1, "a"), 0, 8)):
        with pytest.raises(ValueError, match=r"is not free|is not in"):
            space.occupy(name, offset, size)


def test_a_file_in_use_is_not_removed():
    space, file = SpaceAllocator(1024), FileName(0, "a")
    space.add(file)
    assert space.take(10, lambda _: True, lambda _: True) == (file, 0, 64)
    with pytest.raises(ValueError, match="in use"):
        space.remove(file)
