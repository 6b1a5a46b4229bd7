"""Words of commands: each command is proven against crashes of itself; here one follows another.

``model.commands.known`` lists the findings. An open one whose word holds is a failure here, so the change
that mends it moves its word to those that hold.
"""

import pytest

from model.commands import explore
from model.commands.explore import Explored, every, random_words
from model.commands.known import KNOWN, MENDED
from model.commands.letters import LETTERS
from model.commands.scopes import SCOPES
from model.commands.world import Time, World
from tidegate.committers.transfer.backup import restore_from

QUICK = ("batch", "replace", "restore", "adopt", "rekey", "backup", "lose-store", "lose-log")


@pytest.fixture
def world():
    with Time.virtual():
        made = World()
        yield made
        made.close()


def found_in(explored):
    print(explored)
    return "\n".join(f"{' '.join(word)} -> {wrong}" for word, wrong in explored.found.items())


def test_the_known_findings_are_still_there(world):
    """If this fails, the finding is mended: move its word to ``MENDED``."""
    for known in KNOWN.values():
        word = known.word.split()
        found = explore.run(word, world, Explored())
        assert any(known.is_it(word, wrong) for wrong in found), found


@pytest.mark.parametrize("name", MENDED)
def test_the_word_of_a_mended_finding_holds(world, name):
    explored = Explored()
    assert explore.run(MENDED[name].split(), world, explored) == []
    assert not explored.cannot, "this letter of the word has nothing to do any more"


def test_all_words_of_two_commands(world):
    explored = Explored()
    every(world, QUICK, 2, explored)
    assert not found_in(explored)
    assert explored.words > len(QUICK)


def test_random_words(world):
    explored = Explored()
    random_words(world, 6, 8, seed=1, explored=explored)
    assert not found_in(explored)


@pytest.mark.parametrize("seed", [3, 604])
def test_a_word_ends_in_the_same_state_alone_and_within_its_tree(world, seed, monkeypatch):
    """A copy of a state shares nothing with another one that a letter changes."""
    ends, grow = {}, explore.Tree._grow

    def noted(tree, tried, *, is_end):
        word, fails = grow(tree, tried, is_end=is_end)
        if not fails:
            ends[word] = world.parts()
        return word, fails

    monkeypatch.setattr(explore.Tree, "_grow", noted)
    random_words(world, explore.TREE, 10, seed=seed, explored=Explored())
    beginnings = {word[:-1] for word in ends}
    for word in ends.keys() - beginnings:
        explore.begin(world)
        for number, letter in enumerate(word, 1):
            assert not explore.step(world, letter, Explored(), advice=False)
            assert world.parts() == ends[word[:number]], word[:number]


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_all_words_of_two_letters_of_the_whole_alphabet(world):
    explored = Explored()
    every(world, list(LETTERS), 2, explored)
    assert not found_in(explored)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("scope", SCOPES)
def test_all_words_of_four_letters_of_a_small_alphabet(world, scope):
    explored = Explored()
    every(world, SCOPES[scope].split(), 4, explored)
    assert not found_in(explored)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_every_kill_within_a_command_that_another_one_follows(world):
    explored = Explored()
    every(world, list(LETTERS), 2, explored, kills=True)
    assert not found_in(explored)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_long_random_words(world):
    explored = Explored()
    random_words(world, 300, 50, seed=2, explored=explored)
    assert not found_in(explored)


def test_a_word_that_fails_is_made_short(world):
    word = ("due", "alias", "batch", "backup", "export", "lose-store", "lose-log", "restore-from")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(restore_from, "_name_again", lambda *_: None)
        shortest, wrong = explore.shortest(world, word)
    assert shortest == ("alias", "backup", "lose-store", "lose-log", "restore-from")
    assert "another one of that name" in wrong
