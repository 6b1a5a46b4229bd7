"""Runs of a cache of state: keys are told apart, the newest row wins, what is oldest is given up first."""

import itertools
import random

import numpy as np
import pyarrow as pa
import pytest

from tidegate.base.local_dir import LocalDir
from tidegate.errors import CorruptError
from tidegate.keys.groups import groups_of, key_group
from tidegate.sinks.cache import runs as state_run
from tidegate.sinks.cache.buffer.buffer import Buffer
from tidegate.sinks.cache.buffer.limits import BufferLimits
from tidegate.sinks.cache.compaction import evict, merge, merge_from, newest
from tidegate.sinks.cache.lookup import find, hashes_of
from tidegate.sinks.cache.pieces import Pieces
from tidegate.sinks.cache.runs import Answers, PieceRef, Run, place_of, places_of, rows_of

KEY_GROUPS = 8


def large(keys):
    return pa.array(keys, pa.large_binary())


def rows(content):
    keys = large(content)
    groups = np.array([key_group(key, KEY_GROUPS) for key in content], np.int32)
    return rows_of(places_of(groups, keys), keys, pa.array(content.values(), pa.binary()))


def as_dict(batches):
    return {k: v for batch in batches for k, v in zip(*(batch[n].to_pylist() for n in "kv"), strict=True)}


@pytest.fixture
def folder(tmp_path):
    """Writes runs of given contents, the groups of one task at a time, in pieces; opens them."""

    memory, disk = (LocalDir(str(tmp_path / name), "flights", "u1") for name in ("memory", "disk"))
    buffered = Pieces(lambda: Buffer(memory, [disk], BufferLimits()))

    class Folder:
        number = 0

        def run(self, content, pieces=1, groups=range(KEY_GROUPS)):
            all_rows = newest([rows(content)])
            cuts = [len(all_rows) * n // pieces for n in range(pieces + 1)]
            refs = []
            for start, end in itertools.pairwise(cuts):
                if end > start:
                    self.number += 1
                    part = all_rows.slice(start, end - start)
                    refs.append(buffered.write(f"piece-{self.number}", part))
            return Run(groups.start, groups.stop, tuple(refs))

        def open(self, ref):
            return buffered.open(ref)

        def path(self, ref):
            (path,) = tmp_path.rglob(f"units/{ref.name}/*.memory")
            return path

    yield Folder()
    memory.close()
    disk.close()


# -- hashes -----------------------------------------------------------------------------------------


def test_a_keys_hash_depends_on_its_bytes_alone():
    chance = random.Random(1)
    keys = [chance.randbytes(length) for length in [*range(40), 63, 64, 65, 1000, 32_768]] + [b"\0", b"\0\0"]
    apart = [int(hashes_of(large([key]))[0]) for key in keys]
    assert len(set(apart)) == len(keys)
    array = large([b"before", *keys, b"behind"])
    assert hashes_of(array.slice(1, len(keys))).tolist() == apart
    assert hashes_of(large(list(reversed(keys)))).tolist() == apart[::-1]
    assert hashes_of(large([])).tolist() == []


@pytest.mark.parametrize("seed", range(20))
def test_keys_of_one_number_are_told_apart_by_their_bytes(seed):
    chance = random.Random(seed)
    held = sorted((chance.randrange(4), b"%d" % key) for key in chance.sample(range(60), 30))
    numbers = np.array([number for number, _ in held], np.uint64)
    asked = [(chance.randrange(5), b"%d" % chance.randrange(60)) for _ in range(40)] + held[:10]
    found = find(
        numbers,
        large([key for _, key in held]),
        np.array([number for number, _ in asked], np.uint64),
        large([key for _, key in reversed(asked)]),
        np.arange(len(asked))[::-1],
    )
    assert found.tolist() == [held.index(one) if one in held else -1 for one in asked]


# -- merging ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("seed", range(15))
def test_of_each_key_the_newest_row_is_left(seed, few, folder, monkeypatch):
    if few:
        monkeypatch.setattr(state_run, "hashes_of", lambda keys: hashes_of(keys) % np.uint64(3))
    chance = random.Random(seed)
    expected, runs = {}, []
    for version in range(chance.randint(1, 5)):
        keys = chance.sample(range(50), chance.randint(1, 50))
        content = {b"k%d" % key: b"+%d" % version for key in keys}
        expected |= content
        runs.append(folder.run(content, chance.randint(1, 4)))
    pieces = list(merge(runs, folder.open, chance.choice([500, 5_000])))
    assert as_dict(pieces) == expected
    assert sum(map(len, pieces)) == len(expected)
    places = np.concatenate([piece["p"].to_numpy() for piece in pieces])
    assert (places[1:] >= places[:-1]).all()


@pytest.mark.parametrize("seed", range(15))
def test_a_run_counts_for_its_key_groups_only_however_it_is_cut(seed, folder):
    """After a rescale: what another task had of other key groups may be long out of date."""
    chance = random.Random(seed)
    content = {b"k%d" % key: b"+old" for key in range(60)}
    parallelism = chance.randint(1, 5)
    mine = groups_of(chance.randrange(parallelism), parallelism, KEY_GROUPS)
    run = folder.run(content, chance.randint(1, 6)).within(mine)
    assert run.within(range(mine.stop, mine.stop + 1)).pieces == ()
    expected = {key: value for key, value in content.items() if key_group(key, KEY_GROUPS) in mine}
    assert as_dict(merge([run], folder.open, 1_000)) == expected
    keys = list(content)
    groups = np.array([key_group(key, KEY_GROUPS) for key in keys], np.int32)
    answers = Answers(places_of(groups, large(keys)), large(keys))
    answers.look_in(run, folder.open)
    assert answers.values().to_pylist() == [expected.get(key) for key in keys]


@pytest.mark.parametrize("piece_bytes", [100_000, 1_000, 300])
def test_runs_of_neighbours_that_share_a_piece_are_merged(piece_bytes, folder):
    """After two rescales: each has a part of what a third one wrote."""
    content = {b"k%d" % key: b"+%d" % key for key in range(60)}
    run = folder.run(content, 1)
    neighbours = [run.within(range(1, 3)), run.within(range(3, 4))]
    expected = {key: value for key, value in content.items() if key_group(key, KEY_GROUPS) in range(1, 4)}
    assert as_dict(merge(neighbours, folder.open, piece_bytes)) == expected


def test_the_last_key_group_there_may_be_has_places_too():
    groups = np.array([32_767], np.int32)
    (place,) = state_run.places_of(groups, large([b"k"])).tolist()
    assert place_of(32_767) <= place < place_of(32_768) == 2**64


def test_sizes_double_so_that_a_version_costs_what_it_changes():
    sizes, rewritten = [], 0
    for version in range(2_000):
        sizes.append(random.Random(version).uniform(0.9, 1.1))
        first = merge_from(sizes, 12)
        if first < len(sizes):
            rewritten += sum(sizes[first:])
            sizes[first:] = [sum(sizes[first:])]
        assert len(sizes) <= 12
    assert rewritten < 2_000 * 12


def test_too_many_runs_become_one():
    sizes = [2**n for n in range(13, 0, -1)]
    assert merge_from(sizes, 13) == len(sizes)
    assert merge_from(sizes, 12) == 0


@pytest.mark.parametrize("room", range(0, 110, 7))
def test_only_the_oldest_pieces_are_given_up(room):
    def piece(number):
        return PieceRef(str(number), place_of(number), place_of(number) + 99, 10, "")

    runs = [
        Run(0, 8, tuple(piece(number) for number in group)) for group in ((0, 1, 2, 3), (4, 5), (6, 7, 1, 2))
    ]
    left = evict(runs, room)
    names = [p.name for run in runs for p in run.pieces]
    kept = [p.name for run in left for p in run.pieces]
    assert kept == names[len(names) - len(kept) :]
    assert len(kept) == min(room // 10, len(names))
    assert all(run.pieces for run in left)


# -- files ------------------------------------------------------------------------------------------


def test_a_piece_that_is_not_as_it_was_written_is_refused(folder):
    run = folder.run({b"k%d" % n: b"+%d" % n for n in range(50)})
    (ref,) = run.pieces
    path = folder.path(ref)
    content = path.read_bytes()
    assert as_dict([folder.open(ref)])[b"k7"] == b"+7"
    for place in range(0, ref.bytes, 97):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(CorruptError):
            folder.open(ref)
    path.write_bytes(content[: ref.bytes - 1])
    with pytest.raises(CorruptError, match="bytes"):
        folder.open(ref)
    path.unlink()
    with pytest.raises(CorruptError, match="No such file"):
        folder.open(ref)


def test_what_was_opened_stays_readable_when_its_file_goes(folder):
    run = folder.run({b"k%d" % n: b"+%d" % n for n in range(50)})
    opened = folder.open(run.pieces[0])
    folder.path(run.pieces[0]).unlink()
    assert as_dict([opened])[b"k7"] == b"+7"
